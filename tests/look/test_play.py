"""The window of `proxrl play`, checked on a virtual X server."""

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
from proxrl.look.recording import agent_steps, limit_steps, open_agent_env
from proxrl.look.window import KEYS
from screens import Screen
from videos import SMALL, train

pytest.importorskip("pygame", reason="a window needs pygame-ce")
pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")

# Frames of this many episodes are compared with the screen. At one frame a second they last longer than the test.
EPISODES = 4


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train("CartPole-v1", tmp_path_factory.mktemp("runs"), **SMALL)


def frames_of(run: Path, seed: int) -> list[NDArray[np.uint8]]:
    agent = load(run)
    with open_agent_env(agent, None, "play") as rendered:
        steps = limit_steps(agent_steps(rendered, agent, seed, deterministic=False), EPISODES, None)
        return [frame for step in steps for frame in step.frames]


def test_the_window_shows_the_episode_and_escape_closes_it(cartpole: Path, screen: Screen, tmp_path: Path) -> None:
    frames = frames_of(cartpole, seed=4)
    process = start("play", str(cartpole), "--seed", "4", "--fps", "1", cwd=tmp_path, **screen.environment)
    try:
        wait_for(lambda: screen.xdotool("search", "--pid", str(process.pid)))
        window = screen.xdotool("search", "--pid", str(process.pid)).split()[0]
        wait_for(lambda: "step" in screen.xdotool("getwindowname", window))
        title = screen.xdotool("getwindowname", window)
        assert re.fullmatch(r"CartPole-v1  episode \d+  step \d+  return \d+\.00", title), title
        geometry = dict(line.split("=") for line in screen.xdotool("getwindowgeometry", "--shell", window).splitlines())
        left, top, width, height = (int(geometry[name]) for name in ("X", "Y", "WIDTH", "HEIGHT"))
        assert (width, height) == (600, 424)  # with a line of text

        def shown() -> bool:
            pixels = screen.pixels()[top : top + 400, left : left + width]
            return any(np.array_equal(pixels, frame) for frame in frames)

        wait_for(shown)  # the screen may be read while it is being drawn
        assert (screen.pixels()[top + 400 : top + height, left : left + width] > 128).any()  # the text
        screen.xdotool("windowfocus", "--sync", window, "key", "space")
        wait_for(lambda: title_of(screen, window).endswith("paused"))
        paused = title_of(screen, window)

        def stepped() -> bool:
            screen.xdotool("key", "n")  # one frame; the first step of an episode has two
            return title_of(screen, window) != paused

        wait_for(stepped)
        assert title_of(screen, window).endswith("paused")
        screen.xdotool("key", "plus", "key", "plus", "key", "plus", "key", "plus", "key", "plus")
        screen.xdotool("key", "space")  # now 32 steps a second
        wait_for(lambda: "episode 2" in title_of(screen, window))
        screen.xdotool("windowfocus", "--sync", window, "key", "Escape")
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


def title_of(screen: Screen, window: str) -> str:
    return screen.xdotool("getwindowname", window)


def test_play_prints_the_returns_of_its_episodes(cartpole: Path, screen: Screen, tmp_path: Path) -> None:
    arguments = ("play", str(cartpole), "--episodes", "2", "--seed", "4", "--fps", "500", "--deterministic")
    done = run_command(*arguments, cwd=tmp_path, **screen.environment)
    scores = proxrl.record(cartpole, episodes=2, seed=4, deterministic=True)
    playing = f"Playing most likely actions (without --deterministic they are sampled); {KEYS}"
    expected = [f"episode {n + 1}: return {scores.returns[n]:.2f}, {scores.lengths[n]} steps" for n in range(2)]
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", [playing, *expected])


def test_without_a_display_the_error_names_proxrl_record(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProxRLError, match=f"use proxrl record {cartpole}, which writes a video"):
        proxrl.play(cartpole)
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_display()
    for driver in ("dummy", "offscreen"):  # these render, but show nothing
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
        with pytest.raises(ProxRLError, match="there is no display"):
            proxrl.play(cartpole, episodes=1, fps=1000)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setenv("SDL_VIDEODRIVER", "kmsdrm")
    assert has_display()


def test_a_display_that_does_not_exist_is_a_one_line_error(cartpole: Path, tmp_path: Path) -> None:
    environment = {"DISPLAY": ":977", "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": "x11"}
    done = run_command("play", str(cartpole), cwd=tmp_path, **environment)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no window can be opened" in done.stderr
    assert "proxrl record" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"fps": 0}, "--fps is 0"), ({"episodes": 0}, "--episodes is 0"), ({"seed": -1}, "--seed is -1")],
)
def test_invalid_arguments_are_refused(cartpole: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError, match=message):
        proxrl.play(cartpole, **arguments)
