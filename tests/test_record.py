"""Recorded videos, decoded again: as long as what was played, with something on them, in every family."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import film_envs
import proxrl
from commands import run as run_command
from proxrl.envs.registry import make_environments
from proxrl.errors import ProxRLError
from proxrl.gl import choose_mujoco_gl
from proxrl.recording import checked_out
from proxrl.video import enlarged
from videos import PIXELS, SMALL, assert_moving_pictures, decode, train

pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")
Runs = Callable[..., Path]


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
    ],
)
def test_what_cannot_be_drawn_is_told(runs: Runs, env: str, message: str) -> None:
    run = runs(f"film_envs:{env}", **SMALL)
    with pytest.raises(ProxRLError, match=message):
        proxrl.record(run)
    assert list(run.glob("videos/*")) == []


def test_no_opengl_is_told_with_the_line_that_installs_one(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="HalfCheetah needs MuJoCo")
    run = runs("HalfCheetah-v4", **SMALL, vector="inprocess", max_episode_steps=12)
    monkeypatch.setattr("proxrl.stage.choose_mujoco_gl", lambda: False)
    with pytest.raises(ProxRLError, match="sudo apt install libegl1"):
        proxrl.record(run)


def test_an_opengl_that_does_not_draw_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("proxrl.gl._draws", lambda backend: backend == "osmesa")
    assert choose_mujoco_gl.__wrapped__()
    assert os.environ["MUJOCO_GL"] == "osmesa"
    monkeypatch.setattr("proxrl.gl._draws", lambda _: False)
    assert choose_mujoco_gl.__wrapped__(), "what the user has set stays"
    monkeypatch.setenv("MUJOCO_GL", "")
    assert not choose_mujoco_gl.__wrapped__()


def test_small_pictures_grow_by_whole_pixels_to_an_even_size() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (201, 333, 3), np.uint8)
    assert np.array_equal(enlarged(picture)[::2, ::2], picture)
    odd = np.random.default_rng(0).integers(0, 255, (401, 333, 3), np.uint8)
    assert enlarged(odd).shape == (402, 334, 3)
    assert np.array_equal(enlarged(odd)[:401, :333], odd)


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
