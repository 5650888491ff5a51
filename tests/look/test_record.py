"""Recorded videos, decoded again: as long as what was played, with something on them, in every family."""

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

import film_envs
import proxrl
from commands import children, is_alive, start, wait_for
from commands import run as run_command
from proxrl.common.video import PREVIEW_FRAMES, VideoWriter, count_frames, enlarged, preview
from proxrl.config import Config
from proxrl.envs.registry import make_environments
from proxrl.errors import ProxRLError
from proxrl.look.opengl import choose_mujoco_gl, may_need_mujoco_gl
from proxrl.look.recording import acted, checked_out, film, opened, until
from proxrl.look.rendering import open_stage
from proxrl.runs.folder import RunFolder
from videos import PIXELS, SMALL, assert_moving_pictures, decode, train

pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")
Runs = Callable[..., Path]


class Empty(film_envs.Walk):
    def render(self) -> Any:
        return np.zeros((0, 0, 3), np.uint8)


class Told(film_envs.Walk):
    """Its speed is what it was told."""

    def __init__(self, render_mode: str | None = None, fps: Any = 30) -> None:
        super().__init__(render_mode)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}


class Drawn(film_envs.Walk):
    """Takes no render_mode, but has one."""

    def __init__(self, colour: int = 255) -> None:
        super().__init__("rgb_array", colour)


def passes_on(**kwargs: Any) -> Drawn:
    return Drawn(**kwargs)


class Hiccup(film_envs.Walk):
    """The fifth picture fails."""

    pictures = 0

    def render(self) -> Any:
        self.pictures += 1
        if self.pictures == 5:
            raise RuntimeError("the light went out")
        return super().render()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Trains an environment once."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def trained(env: Any, **settings: Any) -> Path:
        key = f"{env}{settings}"
        if key not in made:
            made[key] = train(env, folder / str(len(made)), **settings)
        return made[key]

    return trained


def test_cartpole_is_as_long_as_its_episode_and_one_frame_more(runs: Runs) -> None:
    run = runs("CartPole-v1", **SMALL)
    recording = proxrl.record(run)
    assert recording.path == run / "videos/latest-step16.mp4"
    video = decode(recording.path)
    assert video.frames.shape == (recording.lengths[0] + 1, 400, 600, 3)
    assert recording.frames == len(video.frames)
    assert (video.fps, video.codec, video.pixels.partition("(")[0]) == (50, "h264", "yuv420p")
    assert_moving_pictures(video.frames)
    assert list(run.glob("videos/.*")) == []


def test_episodes_are_those_of_an_evaluation(runs: Runs) -> None:
    run = runs("CartPole-v1", **SMALL)
    scores = proxrl.evaluate(run, episodes=1, seed=3)
    for kind, deterministic in (("deterministic", True), ("stochastic", False)):
        recording = proxrl.record(run, seed=3, deterministic=deterministic)
        assert recording.returns == scores[kind].returns
        assert recording.path.name == f"latest-step16-seed3{'-deterministic' if deterministic else ''}.mp4"


def test_several_episodes_follow_each_other(runs: Runs, tmp_path: Path) -> None:
    recording = proxrl.record(runs("CartPole-v1", **SMALL), episodes=3, out=tmp_path / "three.mp4", fps=25)
    video = decode(tmp_path / "three.mp4")
    assert len(recording.returns) == 3
    assert len(video.frames) == sum(recording.lengths) + 3
    assert video.fps == 25


def test_gif(runs: Runs, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    recording = proxrl.record(runs("CartPole-v1", **SMALL), gif=True)
    assert recording.path.name == "latest-step16.gif"
    with image.open(recording.path) as film:
        assert (film.n_frames, film.size, film.info["duration"]) == (recording.lengths[0] + 1, (600, 400), 20)
        colours = {colour for _, colour in film.convert("RGB").getcolors(1 << 20)}
    assert {(255, 255, 255), (0, 0, 0)} <= colours
    assert proxrl.record(runs("CartPole-v1", **SMALL), out=tmp_path / "a.gif", max_steps=3).path.read_bytes()[:4] == b"GIF8"


def test_lunar_lander(runs: Runs) -> None:
    pytest.importorskip("Box2D", reason="LunarLander needs Box2D")
    recording = proxrl.record(runs("LunarLander-v3", **SMALL))
    video = decode(recording.path)
    assert video.frames.shape == (recording.lengths[0] + 1, 400, 600, 3)
    assert_moving_pictures(video.frames)


@pytest.mark.parametrize("vector", ["inprocess", "envpool"])
def test_half_cheetah_without_a_display(runs: Runs, vector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="HalfCheetah needs MuJoCo")
    if vector == "envpool":
        pytest.importorskip("envpool", reason="the run is EnvPool's")
    monkeypatch.delenv("DISPLAY", raising=False)
    if not choose_mujoco_gl():
        pytest.skip("MuJoCo finds no OpenGL here: install libegl1 or libosmesa6")
    run = runs("HalfCheetah-v4", **SMALL, vector=vector, max_episode_steps=12)
    recording = proxrl.record(run)
    video = decode(recording.path)
    assert recording.lengths == (12,)
    assert (video.frames.shape, video.fps) == ((13, 480, 480, 3), 20)
    assert_moving_pictures(video.frames)


@pytest.mark.parametrize("vector", ["native", "envpool"])
def test_pong_shows_the_screen_in_colours(runs: Runs, vector: str) -> None:
    pytest.importorskip("ale_py", reason="Pong needs ale-py")
    pytest.importorskip("envpool" if vector == "envpool" else "cv2", reason="of the ways to play Pong")
    run = runs("PongNoFrameskip-v4", **PIXELS, vector=vector)
    recording = proxrl.record(run, max_steps=60)
    video = decode(recording.path)
    assert (video.frames.shape, video.fps) == ((61, 420, 320, 3), 15)
    brown = np.abs(video.frames[-1].astype(int) - (144, 72, 17)).max(axis=2) < 20
    assert brown.mean() > 0.5, "the court is brown"
    assert_moving_pictures(video.frames[30:])


def test_a_game_goes_on_when_a_life_is_lost(runs: Runs) -> None:
    pytest.importorskip("ale_py", reason="Breakout needs ale-py")
    run = runs("BreakoutNoFrameskip-v4", **PIXELS, vector="native")
    recording = proxrl.record(run)
    # Four of five lives are lost before the last, and each is followed by a step that puts the ball into play.
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
    assert_moving_pictures(video.frames)


def test_dm_control(runs: Runs, tmp_path: Path) -> None:
    """In a process of its own, since here a test may have imported EnvPool before ProxRL did."""
    if importlib.util.find_spec("envpool") is None:
        pytest.skip("dm_control needs EnvPool")
    run = runs("dm_control/cheetah-run-v0", **SMALL)
    done = run_command("record", str(run), "--max-steps", "10", "--out", "cheetah.mp4", cwd=tmp_path, DISPLAY="")
    if "sudo apt install libegl1" in done.stderr or "failed to initialize EGL" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.splitlines()[-1] == "Wrote cheetah.mp4 (11 frames, cut off by --max-steps)"
    video = decode(tmp_path / "cheetah.mp4")
    assert video.frames.shape == (11, 480, 480, 3)
    assert_moving_pictures(video.frames)


def test_an_environment_of_ones_own(runs: Runs) -> None:
    """With its mask, its arguments, its own speed, and its 7 x 9 pixels made larger."""
    recording = proxrl.record(runs("film_envs:Walk", **SMALL, env_kwargs={"colour": 200}), episodes=2)
    video = decode(recording.path)
    assert (recording.returns, recording.lengths) == ((5.0, 5.0), (10, 10))
    assert (video.frames.shape, video.fps) == ((22, 322, 414, 3), 12)
    for place, frame in enumerate(video.frames[:9]):
        across, down = place * 46 + 23, 3 * 46 + 23
        assert abs(int(frame[down, across].mean()) - 200) < 8
        assert frame[down, (across + 92) % 414].mean() < 30
    assert proxrl.record(runs("film_envs:already_drawn", **SMALL)).frames == 11


def test_a_python_callable_is_given_again(runs: Runs) -> None:
    run = runs(lambda render_mode=None: film_envs.Walk(render_mode), **SMALL, name="nameless")
    with pytest.raises(ProxRLError, match=r"proxrl\.record"):
        proxrl.record(run)
    assert proxrl.record(run, env=film_envs.Walk).frames == 11


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Undrawn", "can't be drawn: its render_mode is None; let what makes it take render_mode='rgb_array'"),
        ("Black", "every picture is of one colour"),
        ("Flat", r"can't be drawn: ValueError: render\(\) must give a picture .* gave float32 \(8, 8\)"),
        ("Empty", r"can't be drawn: ValueError: render\(\) must give a picture .* gave uint8 \(0, 0, 3\)"),
    ],
)
def test_what_cannot_be_drawn_is_told(runs: Runs, env: str, message: str) -> None:
    run = runs(f"{'test_record' if env == 'Empty' else 'film_envs'}:{env}", **SMALL)
    with pytest.raises(ProxRLError, match=message):
        proxrl.record(run)
    assert list(run.glob("videos/*")) == []


def test_no_opengl_is_told_with_the_line_that_installs_one(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="HalfCheetah needs MuJoCo")
    run = runs("HalfCheetah-v4", **SMALL, vector="inprocess", max_episode_steps=12)
    monkeypatch.setattr("proxrl.look.rendering.choose_mujoco_gl", lambda: False)
    with pytest.raises(ProxRLError, match="sudo apt install libegl1"):
        proxrl.record(run)


def test_an_opengl_that_does_not_draw_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("proxrl.look.opengl._draws", lambda backend: backend == "osmesa")
    assert choose_mujoco_gl.__wrapped__()
    assert os.environ["MUJOCO_GL"] == "osmesa"
    monkeypatch.setattr("proxrl.look.opengl._draws", lambda _: False)
    assert choose_mujoco_gl.__wrapped__(), "what the user has set stays"
    monkeypatch.setenv("MUJOCO_GL", "")
    assert not choose_mujoco_gl.__wrapped__()


def test_small_pictures_grow_by_whole_pixels_to_an_even_size() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (201, 333, 3), np.uint8)
    assert np.array_equal(enlarged(picture)[::2, ::2], picture)
    odd = np.random.default_rng(0).integers(0, 255, (401, 333, 3), np.uint8)
    assert enlarged(odd).shape == (402, 334, 3)
    assert np.array_equal(enlarged(odd)[:401, :333], odd)


def test_long_pictures_do_not_grow_without_limit() -> None:
    assert enlarged(np.zeros((7, 45_000, 3), np.uint8)).shape == (8, 45_000, 3)
    assert enlarged(np.zeros((700, 10, 3), np.uint8)).shape == (1400, 20, 3)


@pytest.mark.parametrize(("told", "fps"), [("fast", 30), (-1, 30), (float("nan"), 30), (1e9, 30), (None, 30), (7.5, 7.5)])
def test_a_speed_that_no_video_can_have_is_passed_over(told: Any, fps: float) -> None:
    stage = open_stage(Config(env="test_record:Told", vector="inprocess"), lambda render_mode: Told(render_mode, told))
    assert stage.fps == fps


def test_render_mode_is_left_out_where_it_is_passed_on_to_what_does_not_take_it(runs: Runs) -> None:
    assert proxrl.record(runs("test_record:passes_on", **SMALL, env_kwargs={"colour": 200})).frames == 11
    with pytest.raises(ProxRLError, match=r"can't be made with render_mode rgb_array \(TypeError: .*'size'"):
        open_stage(Config(env="x:y", vector="inprocess", env_kwargs={"size": 3}), passes_on)


def test_a_picture_that_failed_is_forgotten_by_the_next_recording(runs: Runs, tmp_path: Path) -> None:
    agent = proxrl.load(runs("test_record:Hiccup", **SMALL))
    with opened(agent, None, "record") as stage:

        def recorded(name: str) -> int:
            return film(stage, until(acted(stage, agent, 0, False), 1, None), tmp_path / name, 30).frames

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


def faulty(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An ffmpeg of one's own: a shell script, in which `real` is the true one."""
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
        ("exit 1", "it stopped and did not say why"),
        ("kill -9 $$", "it stopped and did not say why"),
    ],
)
def test_what_ffmpeg_could_not_write_is_not_kept(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: str, reason: str
) -> None:
    """However it fails: an older video stays, the line names the file and the reason, and no process is left."""
    run, video = runs("film_envs:Walk", **SMALL), runs("film_envs:Walk", **SMALL) / "videos/latest-step16.mp4"
    before = proxrl.record(run).path.read_bytes()
    known = children(os.getpid())
    faulty(tmp_path, monkeypatch, script)
    with pytest.raises(ProxRLError, match=rf"^ffmpeg can't write {video}: {reason}") as error:
        proxrl.record(run)
    assert "0x1" not in str(error.value)
    assert capfd.readouterr() == ("", "")
    assert video.read_bytes() == before
    assert [path.name for path in video.parent.iterdir()] == [video.name]
    assert children(os.getpid()) == known


@needs_sh
def test_an_ffmpeg_that_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/no/ffmpeg")
    for call in (write, preview):
        with pytest.raises(ProxRLError, match="ffmpeg can't be started: /no/ffmpeg: No such file"):
            call(tmp_path / "a.mp4")


@needs_sh
def test_a_preview_leaves_standard_input_alone_and_needs_no_new_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write(tmp_path / "a.mp4", frames=240)
    assert count_frames(video) == 240
    before = preview(video)
    assert before[1:] == (240, 240)
    with pytest.importorskip("PIL.Image").open(io.BytesIO(before[0])) as gif:
        assert gif.n_frames == 120 <= PREVIEW_FRAMES
    faulty(tmp_path, monkeypatch, 'case "$*" in *fps_mode*) exit 1;; esac; head -c 4 > /dev/null; real "$@"')
    words = (
        f"from pathlib import Path; from proxrl.common.video import preview; print(preview(Path({str(video)!r}))[1:], input())"
    )
    done = subprocess.run([sys.executable, "-c", words], input="mine", capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("(240, 240) mine\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
def test_ctrl_c_leaves_neither_a_file_nor_a_process(runs: Runs, tmp_path: Path) -> None:
    words = ("record", str(runs("film_envs:Walk", **SMALL)), "--episodes", "1000000", "--out", "long.mp4")
    process = start(*words, cwd=tmp_path, start_new_session=True)
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


def test_starting_over_leaves_videos_of_others_and_of_the_living(runs: Runs) -> None:
    run = train("CartPole-v1", runs("CartPole-v1", **SMALL).parent / "over", **SMALL)
    proxrl.record(run, max_steps=2)
    proxrl.record(run, gif=True, seed=3, max_steps=2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    theirs = ["talk.mp4", "steps.gif", f".latest-step16.mp4.{os.getppid()}.tmp"]
    for name in (*theirs, "step-16.mp4", "best-step8.mp4", "checkpoint-step8.gif", f".latest-step16.mp4.{ended.pid}.tmp"):
        (run / "videos" / name).write_text("x")
    with RunFolder(run) as folder:
        folder.create(folder.config(), clobber=True)
    assert {path.name for path in folder.videos.iterdir()} == set(theirs)


def test_what_a_killed_recording_leaves_is_swept_up(runs: Runs) -> None:
    run = train("CartPole-v1", runs("CartPole-v1", **SMALL).parent / "killed", **SMALL)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (run / "videos").mkdir()
    living = run / f"videos/.best-step16.mp4.{os.getppid()}.tmp"
    for path in (living, run / f"videos/.latest-step16.mp4.{ended.pid}.tmp", run / "videos/.step-16.mp4.1.tmp"):
        path.write_text("half")
    with RunFolder(run) as folder:
        folder.create(folder.config())
    assert list(folder.videos.iterdir()) == [living]


def test_mujoco_is_asked_before_it_is_imported_and_only_where_it_may_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="of MuJoCo")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert not may_need_mujoco_gl("film_envs:Walk"), "too late"
    monkeypatch.delitem(sys.modules, "mujoco")
    asked = {env: may_need_mujoco_gl(env) for env in ("film_envs:Walk", "HalfCheetah-v4", "CartPole-v1", "LunarLander-v3")}
    assert list(asked.values()) == [True, True, False, False]
    assert may_need_mujoco_gl(film_envs.Walk)
    monkeypatch.setenv("DISPLAY", ":0")
    assert not may_need_mujoco_gl("film_envs:Walk")


def test_a_mujoco_that_was_imported_too_early_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="of MuJoCo")

    def unlit(_: Any) -> Any:
        raise RuntimeError("an OpenGL platform library has not been loaded")

    monkeypatch.setattr(film_envs.Walk, "render", unlit)
    with pytest.raises(ProxRLError, match=r"an OpenGL platform .* set MUJOCO_GL=egl before the start"):
        open_stage(Config(env="film_envs:Walk", vector="inprocess"), "film_envs:Walk")


def test_bad_requests_are_told_in_one_line(runs: Runs, tmp_path: Path) -> None:
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
        ({"out": tmp_path / "a.mp4", "gif": True}, "must end in .gif, as --gif says"),
        ({"out": tmp_path / "there.mp4"}, "exists already"),
        ({"out": tmp_path / "file" / "a.mp4"}, "can't write"),
    ):
        with pytest.raises(ProxRLError, match=message) as error:
            proxrl.record(**{"run": run, **arguments})  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    assert (tmp_path / "there.mp4").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there.mp4"]
    assert checked_out(tmp_path / "new.gif", gif=True) == tmp_path / "new.gif"


def test_the_command_tells_returns_and_where_the_video_is(runs: Runs, tmp_path: Path) -> None:
    run = runs("CartPole-v1", **SMALL)
    done = run_command("record", str(run), "--episodes", "2", "--seed", "5", "--out", "two.mp4", cwd=tmp_path, DISPLAY="")
    expected = proxrl.record(run, episodes=2, seed=5)
    lines = [
        f"episode {number}: return {total:.2f}, {length} steps"
        for number, (total, length) in enumerate(zip(expected.returns, expected.lengths, strict=True), 1)
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*lines, f"Wrote two.mp4 ({expected.frames} frames)"]
    assert len(decode(tmp_path / "two.mp4").frames) == expected.frames
