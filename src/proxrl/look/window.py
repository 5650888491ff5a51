"""`proxrl play`: shows a trained policy in a window, in the same way for every family of environments."""

import math
import os
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

from proxrl.common.video import Frame, enlarged
from proxrl.errors import ProxRLError
from proxrl.look.agent import load
from proxrl.look.evaluation import check_request
from proxrl.look.opengl import has_display
from proxrl.look.recording import actions_of, agent_steps, check_limits, limit_steps, open_agent_env
from proxrl.look.rendering import RenderedStep
from proxrl.runs.folder import RUNS_DIR
from proxrl.runs.lookup import find_run
from proxrl.types import Episode

KEYS = "space pauses, N takes one step, + and - change the speed, Esc closes the window"
LINE_HEIGHT = 24  # pixels of the line of text below the picture
FASTEST = 64.0  # times the frames per second
WAIT_MILLISECONDS = 20  # until keys are looked at again


def play(
    run: str | Path,
    *,
    episodes: int | None = None,
    checkpoint: str = "latest",
    deterministic: bool = False,
    seed: int | None = None,
    fps: float | None = None,
    env: Any = None,
    device: str | None = None,
    runs_dir: str | Path = RUNS_DIR,
    trust: bool = False,
) -> list[Episode]:
    """Show a run's policy until the window is closed or `episodes` are finished, and return the finished episodes.

    `env` is for runs whose environment was a Python callable. `trust` allows a run that somebody else has made to import the code
    that its settings name.
    """
    check_request(episodes, seed)
    check_limits(fps)
    pygame, folder = import_pygame(), find_run(run, runs_dir)
    if not has_display():
        raise ProxRLError(f"there is no display to open a window on; use proxrl record {folder.path}, which writes a video")
    agent = load(folder.path, checkpoint, device, trust=trust)
    finished: list[Episode] = []
    with (
        closing(Window(pygame, agent.config.env, actions_of(deterministic))) as window,
        open_agent_env(agent, env, "play") as rendered,
    ):
        for step in limit_steps(agent_steps(rendered, agent, seed, deterministic), episodes, None):
            finished += [step.finished] if step.finished else []
            if not window.show(step, fps or rendered.fps):
                break
    return finished


def import_pygame() -> ModuleType:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError:
        raise ProxRLError("a window needs the video extra: pip install 'proxrl[video]'") from None
    return pygame


class Window:
    """Shows frames at a constant rate, with a line of text below. The keys are listed in `KEYS`."""

    def __init__(self, pygame: ModuleType, title: str, actions: str) -> None:
        self._pygame, self._title, self._actions = pygame, title, actions
        self._screen: Any = None  # opened with the size of the first frame
        self._frame: Frame | None = None
        self._text = self._caption = ""
        self._paused = self._one_step = False
        self._speed = 1.0
        self._due = time.monotonic()  # of the next frame
        try:
            pygame.display.init()
            pygame.font.init()
        except pygame.error as error:
            raise ProxRLError(f"no window can be opened ({error}); use proxrl record, which writes a video") from error
        self._font = pygame.font.Font(None, LINE_HEIGHT - 4)

    def show(self, step: RenderedStep, fps: float) -> bool:
        """Show the frames of a step, and return False if the user has closed the window."""
        for frame in step.frames:
            state = f"episode {step.episode + 1}  step {step.length:,}  return {step.total_reward:.2f}"
            self._frame, self._text = frame, f"{state}  {self._actions}"
            self._caption = f"{self._title}  {state}"
            self._draw()
            if not self._wait(fps):
                return False
        return True

    def close(self) -> None:
        self._pygame.display.quit()

    def _wait(self, fps: float) -> bool:
        """Handle events until the next frame is due; return False if one of them closes the window."""
        self._due = max(self._due, time.monotonic() - 1 / fps) + 1 / (fps * self._speed)
        while True:
            for event in self._pygame.event.get():
                if self._closes(event):
                    return False
                self._handle(event, fps)
            left = self._due - time.monotonic()
            if self._one_step or (left <= 0 and not self._paused):
                self._one_step = False
                return True
            self._pygame.time.wait(WAIT_MILLISECONDS if self._paused else min(WAIT_MILLISECONDS, math.ceil(1000 * left)))

    def _handle(self, event: Any, fps: float) -> None:
        pygame = self._pygame
        if event.type == pygame.KEYDOWN:
            before = self._speed
            if event.key == pygame.K_SPACE:
                self._paused, self._due = not self._paused, time.monotonic()
            elif event.key in (pygame.K_n, pygame.K_RIGHT):
                self._paused = self._one_step = True
            elif event.key in (pygame.K_PLUS, pygame.K_EQUALS, pygame.K_KP_PLUS):
                self._speed = min(2 * before, FASTEST)
            elif event.key in (pygame.K_MINUS, pygame.K_KP_MINUS):
                self._speed = max(before / 2, 1 / FASTEST)
            if self._speed != before:
                self._due = time.monotonic() + 1 / (fps * self._speed)
        if event.type in (pygame.KEYDOWN, pygame.VIDEORESIZE, pygame.VIDEOEXPOSE):
            self._draw()

    def _draw(self) -> None:
        assert self._frame is not None
        image = self._pygame.surfarray.make_surface(enlarged(self._frame).swapaxes(0, 1))
        if self._screen is None:
            size = image.get_width(), image.get_height() + LINE_HEIGHT
            self._screen = self._pygame.display.set_mode(size, self._pygame.RESIZABLE)
        width, height = self._screen.get_size()
        height = max(height - LINE_HEIGHT, 1)
        scale = min(width / image.get_width(), height / image.get_height())
        size = round(image.get_width() * scale), round(image.get_height() * scale)
        self._screen.fill("black")
        corner = (width - size[0]) // 2, (height - size[1]) // 2
        self._screen.blit(self._pygame.transform.scale(image, size), corner)
        state = "paused" if self._paused else f"{self._speed:g}x"
        self._screen.blit(self._font.render(f"{state}  {self._text}", True, "white"), (4, height + 2))
        self._pygame.display.flip()
        self._pygame.display.set_caption(self._caption + "  paused" * self._paused)

    def _closes(self, event: Any) -> bool:
        keys = self._pygame.K_ESCAPE, self._pygame.K_q
        return event.type == self._pygame.QUIT or (event.type == self._pygame.KEYDOWN and event.key in keys)
