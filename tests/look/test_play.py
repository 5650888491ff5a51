"""A window as the X server has it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import proxrl
from commands import run as run_command
from commands import start, wait_for
from proxrl.errors import ProxRLError
from proxrl.look.agent import load
from proxrl.look.opengl import has_display
from proxrl.look.recording import acted, opened, until
from screens import Screen
from videos import SMALL, train

pytest.importorskip("pygame", reason="a window needs pygame-ce")
pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")

# What is compared with the screen: at one frame a second, longer than anybody waits.
EPISODES = 4


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train("CartPole-v1", tmp_path_factory.mktemp("runs"), **SMALL)


def frames_of(run: Path, seed: int) -> list[NDArray[np.uint8]]:
    agent = load(run)
    with opened(agent, None, "play") as stage:
        return [frame for moment in until(acted(stage, agent, seed, False), EPISODES, None) for frame in moment.frames]


def test_the_window_shows_the_episode_and_escape_closes_it(cartpole: Path, screen: Screen, tmp_path: Path) -> None:
    frames = frames_of(cartpole, seed=4)
    process = start("play", str(cartpole), "--seed", "4", "--fps", "1", cwd=tmp_path, **screen.environment)
    try:
        wait_for(lambda: screen.tool("search", "--pid", str(process.pid)))
        window = screen.tool("search", "--pid", str(process.pid)).split()[0]
        wait_for(lambda: "step" in screen.tool("getwindowname", window))
        title = screen.tool("getwindowname", window)
        assert re.fullmatch(r"CartPole-v1  episode \d+  step \d+  return \d+\.00", title), title
        shell = dict(line.split("=") for line in screen.tool("getwindowgeometry", "--shell", window).splitlines())
        left, top, width, height = (int(shell[name]) for name in ("X", "Y", "WIDTH", "HEIGHT"))
        assert (width, height) == (600, 400)

        def shown() -> bool:
            picture = screen.pixels()[top : top + height, left : left + width]
            return any(np.array_equal(picture, frame) for frame in frames)

        wait_for(shown)  # a look in the middle of drawing shows two halves
        screen.tool("windowfocus", "--sync", window, "key", "Escape")
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_episodes_and_their_returns(cartpole: Path, screen: Screen, tmp_path: Path) -> None:
    words = ("play", str(cartpole), "--episodes", "2", "--seed", "4", "--fps", "500", "--deterministic")
    done = run_command(*words, cwd=tmp_path, **screen.environment)
    scores = proxrl.record(cartpole, episodes=2, seed=4, deterministic=True)
    told = [f"episode {n + 1}: return {scores.returns[n]:.2f}, {scores.lengths[n]} steps" for n in range(2)]
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", told)


def test_without_a_display_it_says_what_to_use(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProxRLError, match=f"use proxrl record {cartpole}, which writes a video"):
        proxrl.play(cartpole)
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_display()
    for driver in ("dummy", "offscreen"):  # which draw, but show nothing
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
        with pytest.raises(ProxRLError, match="there is no display"):
            proxrl.play(cartpole, episodes=1, fps=1000)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setenv("SDL_VIDEODRIVER", "kmsdrm")
    assert has_display()


def test_a_display_that_does_not_answer(cartpole: Path, tmp_path: Path) -> None:
    nobody = {"DISPLAY": ":977", "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": "x11"}
    done = run_command("play", str(cartpole), cwd=tmp_path, **nobody)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no window can be opened" in done.stderr
    assert "proxrl record" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"fps": 0}, "--fps is 0"), ({"episodes": 0}, "--episodes is 0"), ({"seed": -1}, "--seed is -1")],
)
def test_bad_requests(cartpole: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError, match=message):
        proxrl.play(cartpole, **arguments)
