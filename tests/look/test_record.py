"""Recorded videos are decoded again: they have as many frames as the episode, and show something, in every family."""

import importlib.util
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxrl
import render_envs
from commands import children, is_alive, start, wait_for
from commands import run as run_command
from proxrl.common.video import PREVIEW_FRAMES, VideoWriter, count_frames, enlarged, preview
from proxrl.config import Config
from proxrl.envs.registry import make_environments
from proxrl.errors import ProxRLError
from proxrl.look.opengl import choose_mujoco_gl, may_need_mujoco_gl
from proxrl.look.recording import agent_steps, check_out, limit_steps, open_agent_env, write_video
from proxrl.look.rendering import open_rendered_env
from proxrl.runs.folder import RunFolder
from terminals import run_in_pipe, run_on_terminal, screen_lines
from videos import PIXELS, SMALL, assert_moving_frames, decode, train

pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")
Runs = Callable[..., Path]


class Empty(render_envs.Walk):
    def render(self) -> Any:
        return np.zeros((0, 0, 3), np.uint8)


class WithFps(render_envs.Walk):
    """Has the given value as its render_fps."""

    def __init__(self, render_mode: str | None = None, fps: Any = 30) -> None:
        super().__init__(render_mode)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}


class FixedRenderMode(render_envs.Walk):
    """Has a render_mode, but no argument for it."""

    def __init__(self, color: int = 255) -> None:
        super().__init__("rgb_array", color)


def passes_kwargs_on(**kwargs: Any) -> FixedRenderMode:
    return FixedRenderMode(**kwargs)


class FailsOnce(render_envs.Walk):
    """Fails to render the fifth frame."""

    renders = 0

    def render(self) -> Any:
        self.renders += 1
        if self.renders == 5:
            raise RuntimeError("the light went out")
        return super().render()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return a function that trains a run, each only once."""
    folder, trained_runs = tmp_path_factory.mktemp("runs"), {}

    def trained(env: Any, **settings: Any) -> Path:
        key = f"{env}{settings}"
        if key not in trained_runs:
            trained_runs[key] = train(env, folder / str(len(trained_runs)), **settings)
        return trained_runs[key]

    return trained


def test_a_video_of_cartpole_has_one_frame_more_than_its_episode_has_steps(runs: Runs) -> None:
    run = runs("CartPole-v1", **SMALL)
    recording = proxrl.record(run)
    assert recording.path == run / "videos/latest-step16.mp4"
    video = decode(recording.path)
    assert video.frames.shape == (recording.lengths[0] + 1, 400, 600, 3)
    assert recording.frames == len(video.frames)
    assert (video.fps, video.codec, video.pixels.partition("(")[0]) == (50, "h264", "yuv420p")
    assert_moving_frames(video.frames)
    assert list(run.glob("videos/.*")) == []


def test_recorded_episodes_equal_those_of_an_evaluation(runs: Runs) -> None:
    run = runs("CartPole-v1", **SMALL)
    scores = proxrl.evaluate(run, episodes=1, seed=3)
    for kind, deterministic in (("deterministic", True), ("stochastic", False)):
        recording = proxrl.record(run, seed=3, deterministic=deterministic)
        assert recording.returns == scores[kind].returns
        assert recording.path.name == f"latest-step16-seed3{'-deterministic' if deterministic else ''}.mp4"


def test_several_episodes_are_in_one_video(runs: Runs, tmp_path: Path) -> None:
    recording = proxrl.record(runs("CartPole-v1", **SMALL), episodes=3, out=tmp_path / "three.mp4", fps=25)
    video = decode(tmp_path / "three.mp4")
    assert len(recording.returns) == 3
    assert len(video.frames) == sum(recording.lengths) + 3
    assert video.fps == 25


def test_gif(runs: Runs, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    recording = proxrl.record(runs("CartPole-v1", **SMALL), gif=True)
    assert recording.path.name == "latest-step16.gif"
    with image.open(recording.path) as gif:
        assert (gif.n_frames, gif.size, gif.info["duration"]) == (recording.lengths[0] + 1, (600, 400), 20)
        colors = {color for _, color in gif.convert("RGB").getcolors(1 << 20)}
    assert {(255, 255, 255), (0, 0, 0)} <= colors
    assert proxrl.record(runs("CartPole-v1", **SMALL), out=tmp_path / "a.gif", max_steps=3).path.read_bytes()[:4] == b"GIF8"


def test_lunar_lander(runs: Runs) -> None:
    pytest.importorskip("Box2D", reason="LunarLander needs Box2D")
    recording = proxrl.record(runs("LunarLander-v3", **SMALL))
    video = decode(recording.path)
    assert video.frames.shape == (recording.lengths[0] + 1, 400, 600, 3)
    assert_moving_frames(video.frames)


@pytest.mark.parametrize("vector", ["inprocess", "envpool"])
def test_half_cheetah_without_a_display(runs: Runs, vector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="HalfCheetah needs MuJoCo")
    if vector == "envpool":
        pytest.importorskip("envpool", reason="the run uses EnvPool")
    monkeypatch.delenv("DISPLAY", raising=False)
    if not choose_mujoco_gl():
        pytest.skip("MuJoCo finds no OpenGL here: install libegl1 or libosmesa6")
    run = runs("HalfCheetah-v4", **SMALL, vector=vector, max_episode_steps=12)
    recording = proxrl.record(run)
    video = decode(recording.path)
    assert recording.lengths == (12,)
    assert (video.frames.shape, video.fps) == ((13, 480, 480, 3), 20)
    assert_moving_frames(video.frames)


@pytest.mark.parametrize("vector", ["native", "envpool"])
def test_a_video_of_pong_shows_the_screen_in_color(runs: Runs, vector: str) -> None:
    pytest.importorskip("ale_py", reason="Pong needs ale-py")
    pytest.importorskip("envpool" if vector == "envpool" else "cv2", reason="needed for this way to play Pong")
    run = runs("PongNoFrameskip-v4", **PIXELS, vector=vector)
    recording = proxrl.record(run, max_steps=60)
    video = decode(recording.path)
    assert (video.frames.shape, video.fps) == ((61, 420, 320, 3), 15)
    brown = np.abs(video.frames[-1].astype(int) - (144, 72, 17)).max(axis=2) < 20
    assert brown.mean() > 0.5, "the court is brown"
    assert_moving_frames(video.frames[30:])


def test_a_recorded_game_continues_when_a_life_is_lost(runs: Runs) -> None:
    pytest.importorskip("ale_py", reason="Breakout needs ale-py")
    run = runs("BreakoutNoFrameskip-v4", **PIXELS, vector="native")
    recording = proxrl.record(run)
    # Four lives are lost before the last, and each is followed by a step that puts the ball into play.
    assert recording.lengths[0] > 100
    assert len(decode(recording.path).frames) == recording.lengths[0] + 1 + 4


def test_procgen(runs: Runs) -> None:
    pytest.importorskip("envpool", reason="Procgen needs EnvPool")
    try:
        make_environments("CoinrunEasy-v0").close()
    except ProxRLError as error:
        pytest.skip(str(error))
    recording = proxrl.record(runs("CoinrunEasy-v0", **PIXELS), max_steps=15)
    video = decode(recording.path)
    assert (video.frames.shape, video.fps) == ((16, 320, 320, 3), 15)
    assert_moving_frames(video.frames)


def test_dm_control(runs: Runs, tmp_path: Path) -> None:
    """In a separate process, since in this one a test may have imported EnvPool before ProxRL did."""
    if importlib.util.find_spec("envpool") is None:
        pytest.skip("dm_control needs EnvPool")
    run = runs("dm_control/cheetah-run-v0", **SMALL)
    done = run_command("record", str(run), "--max-steps", "10", "--out", "cheetah.mp4", cwd=tmp_path, DISPLAY="")
    if "sudo apt install libegl1" in done.stderr or "failed to initialize EGL" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.splitlines()[-1] == "Wrote cheetah.mp4 (11 frames, sampled actions, cut off by --max-steps)"
    video = decode(tmp_path / "cheetah.mp4")
    assert video.frames.shape == (11, 480, 480, 3)
    assert_moving_frames(video.frames)


def test_a_custom_environment(runs: Runs) -> None:
    """Its mask, its arguments and its render_fps are used, and its 7 x 9 pixels are enlarged."""
    recording = proxrl.record(runs("render_envs:Walk", **SMALL, env_kwargs={"color": 200}), episodes=2)
    video = decode(recording.path)
    assert (recording.returns, recording.lengths) == ((5.0, 5.0), (10, 10))
    assert (video.frames.shape, video.fps) == ((22, 322, 414, 3), 12)
    for position, frame in enumerate(video.frames[:9]):
        across, down = position * 46 + 23, 3 * 46 + 23
        assert abs(int(frame[down, across].mean()) - 200) < 8
        assert frame[down, (across + 92) % 414].mean() < 30
    assert proxrl.record(runs("render_envs:with_render_mode", **SMALL)).frames == 11


def test_a_python_callable_is_passed_as_env(runs: Runs) -> None:
    run = runs(lambda render_mode=None: render_envs.Walk(render_mode), **SMALL, name="nameless")
    with pytest.raises(ProxRLError, match=r"proxrl\.record"):
        proxrl.record(run)
    assert proxrl.record(run, env=render_envs.Walk).frames == 11


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("WithoutRenderMode", "can't be rendered: its render_mode is None; let its constructor accept render_mode='rgb_array'"),
        ("Black", "every frame has a single color"),
        ("WithoutChannels", r"can't be rendered: ValueError: render\(\) must return an image .* returned float32 \(8, 8\)"),
        ("Empty", r"can't be rendered: ValueError: render\(\) must return an image .* returned uint8 \(0, 0, 3\)"),
    ],
)
def test_an_environment_that_cannot_be_rendered_is_refused(runs: Runs, env: str, message: str) -> None:
    run = runs(f"{'test_record' if env == 'Empty' else 'render_envs'}:{env}", **SMALL)
    with pytest.raises(ProxRLError, match=message):
        proxrl.record(run)
    assert list(run.glob("videos/*")) == []


def test_without_an_opengl_the_error_names_the_packages_to_install(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="HalfCheetah needs MuJoCo")
    run = runs("HalfCheetah-v4", **SMALL, vector="inprocess", max_episode_steps=12)
    monkeypatch.setattr("proxrl.look.rendering.choose_mujoco_gl", lambda: False)
    with pytest.raises(ProxRLError, match="sudo apt install libegl1"):
        proxrl.record(run)


def test_an_opengl_that_does_not_work_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("proxrl.look.opengl._works", lambda backend: backend == "osmesa")
    assert choose_mujoco_gl.__wrapped__()
    assert os.environ["MUJOCO_GL"] == "osmesa"
    monkeypatch.setattr("proxrl.look.opengl._works", lambda _: False)
    assert choose_mujoco_gl.__wrapped__(), "what the user has set is not changed"
    monkeypatch.setenv("MUJOCO_GL", "")
    assert not choose_mujoco_gl.__wrapped__()


def test_small_frames_are_enlarged_by_a_whole_factor_to_an_even_size() -> None:
    small = np.random.default_rng(0).integers(0, 255, (201, 333, 3), np.uint8)
    assert np.array_equal(enlarged(small)[::2, ::2], small)
    odd = np.random.default_rng(0).integers(0, 255, (401, 333, 3), np.uint8)
    assert enlarged(odd).shape == (402, 334, 3)
    assert np.array_equal(enlarged(odd)[:401, :333], odd)


def test_long_frames_are_not_enlarged_beyond_the_limit() -> None:
    assert enlarged(np.zeros((7, 45_000, 3), np.uint8)).shape == (8, 45_000, 3)
    assert enlarged(np.zeros((700, 10, 3), np.uint8)).shape == (1400, 20, 3)


@pytest.mark.parametrize(("render_fps", "fps"), [("fast", 30), (-1, 30), (float("nan"), 30), (1e9, 30), (None, 30), (7.5, 7.5)])
def test_an_invalid_render_fps_is_replaced_by_the_default(render_fps: Any, fps: float) -> None:
    config = Config(env="test_record:WithFps", vector="inprocess")
    assert open_rendered_env(config, lambda render_mode: WithFps(render_mode, render_fps)).fps == fps


def test_render_mode_is_left_out_if_kwargs_are_passed_on_to_a_function_without_it(runs: Runs) -> None:
    assert proxrl.record(runs("test_record:passes_kwargs_on", **SMALL, env_kwargs={"color": 200})).frames == 11
    with pytest.raises(ProxRLError, match=r"can't be created with render_mode='rgb_array' \(TypeError: .*'size'"):
        open_rendered_env(Config(env="x:y", vector="inprocess", env_kwargs={"size": 3}), passes_kwargs_on)


def test_a_rendering_error_does_not_affect_the_next_recording(runs: Runs, tmp_path: Path) -> None:
    agent = proxrl.load(runs("test_record:FailsOnce", **SMALL))
    with open_agent_env(agent, None, "record") as rendered:

        def recorded(name: str) -> int:
            steps = limit_steps(agent_steps(rendered, agent, 0, deterministic=False), 1, None)
            return write_video(rendered, steps, tmp_path / name, 30).frames

        with pytest.raises(ProxRLError, match="the light went out"):
            recorded("first.mp4")
        assert recorded("second.mp4") == 11
    assert len(decode(tmp_path / "second.mp4").frames) == 11


DIAGONAL = np.eye(64, dtype=np.uint8)[:, :, None].repeat(3, axis=2)


def write(path: Path, frames: int = 1) -> Path:
    with VideoWriter(path, 30) as writer:
        for brightness in range(frames):
            writer.add(DIAGONAL * brightness)
    return path


def replace_ffmpeg(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Replace ffmpeg by a shell script, in which `real` is the actual ffmpeg."""
    import imageio_ffmpeg

    program = folder / "ffmpeg.sh"
    program.write_text(f'#!/bin/sh\nreal() {{ "{imageio_ffmpeg.get_ffmpeg_exe()}" "$@"; }}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))


needs_sh = pytest.mark.skipif(sys.platform == "win32", reason="the ffmpeg of these tests is a shell script")


@needs_sh
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            'real "$@"; echo "[out#0/mp4 @ 0x1] No space left on device" >&2; echo "Conversion failed!" >&2; exit 1',
            "No space left",
        ),
        ('exec <&-; echo "no such encoder" >&2; exit 3', "no such encoder"),
        ("exit 1", "it stopped without an error message"),
        ("kill -9 $$", "it stopped without an error message"),
    ],
)
def test_a_video_that_ffmpeg_could_not_write_is_discarded(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: str, reason: str
) -> None:
    """An older video stays, the error names the file and the reason, and no process is left."""
    run, video = runs("render_envs:Walk", **SMALL), runs("render_envs:Walk", **SMALL) / "videos/latest-step16.mp4"
    before = proxrl.record(run).path.read_bytes()
    children_before = children(os.getpid())
    replace_ffmpeg(tmp_path, monkeypatch, script)
    with pytest.raises(ProxRLError, match=rf"^ffmpeg can't write {video}: {reason}") as error:
        proxrl.record(run)
    assert "0x1" not in str(error.value)
    assert capfd.readouterr() == ("", "")
    assert video.read_bytes() == before
    assert [path.name for path in video.parent.iterdir()] == [video.name]
    assert children(os.getpid()) == children_before


@needs_sh
def test_an_ffmpeg_that_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/no/ffmpeg")
    for call in (write, preview):
        with pytest.raises(ProxRLError, match="ffmpeg can't be started: /no/ffmpeg: No such file"):
            call(tmp_path / "a.mp4")


@needs_sh
def test_a_preview_does_not_read_standard_input_and_works_with_an_old_ffmpeg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write(tmp_path / "a.mp4", frames=240)
    assert count_frames(video) == 240
    before = preview(video)
    assert before[1:] == (240, 240)
    with pytest.importorskip("PIL.Image").open(io.BytesIO(before[0])) as gif:
        assert gif.n_frames == 120 <= PREVIEW_FRAMES
    replace_ffmpeg(tmp_path, monkeypatch, 'case "$*" in *fps_mode*) exit 1;; esac; head -c 4 > /dev/null; real "$@"')
    code = f"from pathlib import Path; from proxrl.common.video import preview; print(preview(Path({str(video)!r}))[1:], input())"
    done = subprocess.run([sys.executable, "-c", code], input="mine", capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("(240, 240) mine\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
def test_ctrl_c_leaves_neither_a_file_nor_a_process(runs: Runs, tmp_path: Path) -> None:
    arguments = ("record", str(runs("render_envs:Walk", **SMALL)), "--episodes", "1000000", "--out", "long.mp4")
    process = start(*arguments, cwd=tmp_path, start_new_session=True)
    try:
        wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob(".long.mp4.*.tmp")))
        encoders = children(process.pid)
        assert len(encoders) == 1
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err.count("Traceback")) == (130, 0)
    wait_for(lambda: not is_alive(encoders[0]), 10)
    assert list(tmp_path.iterdir()) == []


def test_clobber_deletes_only_videos_of_proxrl_that_no_process_is_writing(runs: Runs) -> None:
    run = train("CartPole-v1", runs("CartPole-v1", **SMALL).parent / "over", **SMALL)
    proxrl.record(run, max_steps=2)
    proxrl.record(run, gif=True, seed=3, max_steps=2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = ["talk.mp4", "steps.gif", f".latest-step16.mp4.{os.getppid()}.tmp"]
    for name in (*kept, "step-16.mp4", "best-step8.mp4", "checkpoint-step8.gif", f".latest-step16.mp4.{ended.pid}.tmp"):
        (run / "videos" / name).write_text("x")
    with RunFolder(run) as folder:
        folder.create(folder.config(), clobber=True)
    assert {path.name for path in folder.videos.iterdir()} == set(kept)


def test_files_of_a_killed_recording_are_deleted(runs: Runs) -> None:
    run = train("CartPole-v1", runs("CartPole-v1", **SMALL).parent / "killed", **SMALL)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (run / "videos").mkdir()
    being_written = run / f"videos/.best-step16.mp4.{os.getppid()}.tmp"
    for path in (being_written, run / f"videos/.latest-step16.mp4.{ended.pid}.tmp", run / "videos/.step-16.mp4.1.tmp"):
        path.write_text("half")
    with RunFolder(run) as folder:
        folder.create(folder.config())
    assert list(folder.videos.iterdir()) == [being_written]


def test_an_opengl_is_chosen_before_mujoco_is_imported_and_only_if_it_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="needs MuJoCo")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert not may_need_mujoco_gl("render_envs:Walk"), "too late"
    monkeypatch.delitem(sys.modules, "mujoco")
    needed = {env: may_need_mujoco_gl(env) for env in ("render_envs:Walk", "HalfCheetah-v4", "CartPole-v1", "LunarLander-v3")}
    assert list(needed.values()) == [True, True, False, False]
    assert may_need_mujoco_gl(render_envs.Walk)
    monkeypatch.setenv("DISPLAY", ":0")
    assert not may_need_mujoco_gl("render_envs:Walk")


def test_if_mujoco_was_imported_too_early_the_error_says_to_set_mujoco_gl(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="needs MuJoCo")

    def fail(_: Any) -> Any:
        raise RuntimeError("an OpenGL platform library has not been loaded")

    monkeypatch.setattr(render_envs.Walk, "render", fail)
    with pytest.raises(ProxRLError, match=r"an OpenGL platform .* set MUJOCO_GL=egl before starting proxrl"):
        open_rendered_env(Config(env="render_envs:Walk", vector="inprocess"), "render_envs:Walk")


def test_invalid_arguments_are_refused_in_one_line(runs: Runs, tmp_path: Path) -> None:
    run = runs("CartPole-v1", **SMALL)
    (tmp_path / "there.mp4").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"")
    for arguments, message in (
        ({"run": tmp_path / "nowhere"}, "no run at"),
        ({"checkpoint": "best"}, "has no checkpoint 'best'; it has latest"),
        ({"fps": 0}, "--fps is 0, but must be greater than 0"),
        ({"episodes": 0}, "--episodes is 0"),
        ({"max_steps": 0}, "--max-steps is 0"),
        ({"out": tmp_path / "a.avi"}, r"must end in .mp4 or .gif"),
        ({"out": tmp_path / "a.mp4", "gif": True}, "must end in .gif, because of --gif"),
        ({"out": tmp_path / "there.mp4"}, "exists already"),
        ({"out": tmp_path / "file" / "a.mp4"}, "can't write"),
    ):
        with pytest.raises(ProxRLError, match=message) as error:
            proxrl.record(**{"run": run, **arguments})  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    assert (tmp_path / "there.mp4").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there.mp4"]
    assert check_out(tmp_path / "new.gif", gif=True) == tmp_path / "new.gif"


PROGRESS = """
import time
from proxrl.look.recording import RecordingProgress
from proxrl.look.rendering import RenderedEnv, RenderedStep
from proxrl.types import Episode
rendered = RenderedEnv(None, None, 30.0, 10)
with RecordingProgress(2, None) as progress:
    progress.watch(RenderedStep([], 0, 3, 4.5, None), rendered)
    time.sleep(0.3)  # it is drawn ten times a second
    progress.watch(RenderedStep([], 0, 4, 6.0, Episode(0, 6.0, 4)), rendered)
"""


def test_the_command_shows_a_bar_on_a_terminal_and_a_line_for_every_episode() -> None:
    received = run_on_terminal(PROGRESS)
    assert "episode 1/2, step 3, return 4.50" in received
    assert screen_lines(received) == ["episode 1: return 6.00, 4 steps"]
    assert run_in_pipe(PROGRESS) == "episode 1: return 6.00, 4 steps\n"


def test_the_command_prints_returns_and_the_path_of_the_video(runs: Runs, tmp_path: Path) -> None:
    run = runs("CartPole-v1", **SMALL)
    done = run_command("record", str(run), "--episodes", "2", "--seed", "5", "--out", "two.mp4", cwd=tmp_path, DISPLAY="")
    expected = proxrl.record(run, episodes=2, seed=5)
    lines = [
        f"episode {number}: return {total:.2f}, {length} steps"
        for number, (total, length) in enumerate(zip(expected.returns, expected.lengths, strict=True), 1)
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*lines, f"Wrote two.mp4 ({expected.frames} frames, sampled actions)"]
    assert len(decode(tmp_path / "two.mp4").frames) == expected.frames
