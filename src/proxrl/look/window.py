"""`proxrl play`: shows a trained policy in a window, in the same way for every family of environments."""

import os
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

from proxrl.common.video import Frame, enlarged
from proxrl.errors import ProxRLError
from proxrl.look.agent import load
from proxrl.look.evaluation import check_request
from proxrl.look.opengl import has_display
from proxrl.look.recording import agent_steps, check_limits, limit_steps, open_agent_env
from proxrl.look.rendering import RenderedStep
from proxrl.runs.folder import RUNS_DIR
from proxrl.runs.lookup import find_run
from proxrl.types import Episode


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
    with closing(Window(pygame, agent.config.env)) as window, open_agent_env(agent, env, "play") as rendered:
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
    """Shows frames at a constant rate. Esc, Q and the window's close button close it."""

    def __init__(self, pygame: ModuleType, title: str) -> None:
        self._pygame, self._title = pygame, title
        self._clock = pygame.time.Clock()
        self._screen: Any = None  # opened with the size of the first frame
        try:
            pygame.display.init()
        except pygame.error as error:
            raise ProxRLError(f"no window can be opened ({error}); use proxrl record, which writes a video") from error

    def show(self, step: RenderedStep, fps: float) -> bool:
        """Show the frames of a step, and return False if the user has closed the window."""
        for frame in step.frames:
            self._draw(frame)
            state = f"episode {step.episode + 1}  step {step.length:,}  return {step.total_reward:.2f}"
            self._pygame.display.set_caption(f"{self._title}  {state}")
            self._clock.tick(fps)
        return not any(map(self._closes, self._pygame.event.get()))

    def close(self) -> None:
        self._pygame.display.quit()

    def _draw(self, frame: Frame) -> None:
        image = self._pygame.surfarray.make_surface(enlarged(frame).swapaxes(0, 1))
        if self._screen is None:
            self._screen = self._pygame.display.set_mode(image.get_size(), self._pygame.RESIZABLE)
        width, height = self._screen.get_size()
        scale = min(width / image.get_width(), height / image.get_height())
        size = round(image.get_width() * scale), round(image.get_height() * scale)
        self._screen.fill("black")
        corner = (width - size[0]) // 2, (height - size[1]) // 2
        self._screen.blit(self._pygame.transform.scale(image, size), corner)
        self._pygame.display.flip()

    def _closes(self, event: Any) -> bool:
        keys = self._pygame.K_ESCAPE, self._pygame.K_q
        return event.type == self._pygame.QUIT or (event.type == self._pygame.KEYDOWN and event.key in keys)
