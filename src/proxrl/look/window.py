"""`proxrl play`: a trained policy in a window, the same for every family of environments."""

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
from proxrl.look.recording import acted, check_speed, opened, until
from proxrl.look.rendering import Moment
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
) -> list[Episode]:
    """Show a run's policy until the window is closed, or so many episodes are over; gives those that were. `env` is for runs
    whose environment was a Python callable.
    """
    check_request(episodes, seed)
    check_speed(fps)
    pygame, folder = import_pygame(), find_run(run, runs_dir)
    if not has_display():
        raise ProxRLError(f"there is no display to open a window on; use proxrl record {folder.path}, which writes a video")
    agent = load(folder.path, checkpoint, device)
    finished: list[Episode] = []
    with closing(Window(pygame, agent.config.env)) as window, opened(agent, env, "play") as stage:
        for moment in until(acted(stage, agent, seed, deterministic), episodes, None):
            finished += [moment.finished] if moment.finished else []
            if not window.show(moment, fps or stage.fps):
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
    """Pictures at an even pace. Esc, Q and the window's own button close it."""

    def __init__(self, pygame: ModuleType, title: str) -> None:
        self._pygame, self._title = pygame, title
        self._clock = pygame.time.Clock()
        self._screen: Any = None  # opens with the first picture, whose size it takes
        try:
            pygame.display.init()
        except pygame.error as error:
            raise ProxRLError(f"no window can be opened ({error}); use proxrl record, which writes a video") from error

    def show(self, moment: Moment, fps: float) -> bool:
        """Whether to go on."""
        for frame in moment.frames:
            self._draw(frame)
            told = f"episode {moment.episode + 1}  step {moment.step:,}  return {moment.total:.2f}"
            self._pygame.display.set_caption(f"{self._title}  {told}")
            self._clock.tick(fps)
        return not any(map(self._closes, self._pygame.event.get()))

    def close(self) -> None:
        self._pygame.display.quit()

    def _draw(self, frame: Frame) -> None:
        picture = self._pygame.surfarray.make_surface(enlarged(frame).swapaxes(0, 1))
        if self._screen is None:
            self._screen = self._pygame.display.set_mode(picture.get_size(), self._pygame.RESIZABLE)
        width, height = self._screen.get_size()
        scale = min(width / picture.get_width(), height / picture.get_height())
        size = round(picture.get_width() * scale), round(picture.get_height() * scale)
        self._screen.fill("black")
        corner = (width - size[0]) // 2, (height - size[1]) // 2
        self._screen.blit(self._pygame.transform.scale(picture, size), corner)
        self._pygame.display.flip()

    def _closes(self, event: Any) -> bool:
        keys = self._pygame.K_ESCAPE, self._pygame.K_q
        return event.type == self._pygame.QUIT or (event.type == self._pygame.KEYDOWN and event.key in keys)
