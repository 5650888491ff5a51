"""`proxrl record`: episodes of a trained policy as a video, without a display."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxrl.build import arithmetic
from proxrl.common.files import one_line_errors, replacing
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.common.video import VideoWriter, import_ffmpeg
from proxrl.errors import ProxRLError, check_at_least
from proxrl.look.agent import Agent, load
from proxrl.look.evaluation import check_request, check_spaces, do_nothing, named_env
from proxrl.look.rendering import FASTEST_FPS, Moment, Stage, moments, open_stage
from proxrl.runs.folder import RUNS_DIR
from proxrl.runs.lookup import find_run
from proxrl.types import Episode

Watcher = Callable[[Moment, Stage], None]


@dataclass(frozen=True)
class Recording:
    """A video and what is in it. An episode that was cut off has no return."""

    path: Path
    frames: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


def record(
    run: str | Path,
    *,
    out: str | Path | None = None,
    episodes: int = 1,
    checkpoint: str = "latest",
    deterministic: bool = False,
    seed: int | None = None,
    fps: float | None = None,
    gif: bool = False,
    max_steps: int | None = None,
    env: Any = None,
    device: str | None = None,
    runs_dir: str | Path = RUNS_DIR,
    watch: Watcher = do_nothing,
) -> Recording:
    """Write episodes of a run to one video: `out`, or a file in its `videos/`. `env` is for runs whose environment was a Python
    callable, and `watch` is called after every step.
    """
    check_request(episodes, seed)
    check_speed(fps, max_steps)
    import_ffmpeg()
    folder = find_run(run, runs_dir)
    agent = load(folder.path, checkpoint, device)
    # A step's own checkpoint must not take the name of what --capture-video recorded at that step.
    stem = f"{'checkpoint' if checkpoint.startswith('step-') else checkpoint}-step{agent.step}"
    stem += "" if seed is None else f"-seed{seed}"
    path = checked_out(out, gif) if out else folder.videos / f"{stem}{'-deterministic' if deterministic else ''}.mp4"
    path = path.with_suffix(".gif") if gif else path
    with opened(agent, env, "record") as stage:
        played = acted(stage, agent, seed, deterministic)
        return film(stage, until(played, episodes, max_steps), path, fps or stage.fps, watch)


def film(stage: Stage, played: Iterable[Moment], path: Path, fps: float, watch: Watcher = do_nothing) -> Recording:
    """Write what is played to a file, which appears under its name when it is whole."""
    finished: list[Episode] = []
    with one_line_errors("write", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with one_line_errors("write", path), replacing(path) as temporary:
        temporary.touch()  # what can't be written is found out before anything is played
        with VideoWriter(temporary, fps, gif=path.suffix == ".gif", name=path) as writer:
            for moment in played:
                for frame in moment.frames:
                    writer.add(frame)
                finished += [moment.finished] if moment.finished else []
                watch(moment, stage)
        if writer.blank:
            raise ProxRLError("every picture is of one colour, so no video was kept; does render() draw anything?")
    returns, lengths = tuple(episode.total_reward for episode in finished), tuple(episode.length for episode in finished)
    return Recording(path, writer.frames, returns, lengths)


@contextmanager
def opened(agent: Agent, env: Any, call: str) -> Iterator[Stage]:
    """The stage of an agent's run, as long as it is needed."""
    stage = open_stage(agent.config, env if env is not None else named_env(agent, call))
    try:
        check_spaces(stage.environments, agent)
        with arithmetic(agent.config, agent.policy):
            yield stage
    finally:
        stage.environments.close()


def acted(stage: Stage, agent: Agent, seed: int | None, deterministic: bool) -> Iterator[Moment]:
    seed = integer_seed(agent.config.seed, Purpose.EVALUATION) if seed is None else seed
    return moments(stage, agent.compute, agent.policy, seed, deterministic)


def until(played: Iterable[Moment], episodes: int | None, max_steps: int | None) -> Iterator[Moment]:
    """As many episodes, or steps of them all, whichever is fewer; None for no limit."""
    steps = 0
    for moment in played:
        yield moment
        steps += len(moment.frames) > 0
        over = episodes is not None and moment.finished is not None and moment.episode + 1 == episodes
        if over or (max_steps is not None and steps >= max_steps):
            return


def check_speed(fps: float | None, max_steps: int | None = None) -> None:
    if fps is not None and not 0 < fps <= FASTEST_FPS:
        raise ProxRLError(f"--fps is {fps:g}, but must be greater than 0 and at most {FASTEST_FPS:g}")
    check_at_least("--max-steps", max_steps, 1)


def checked_out(out: str | Path, gif: bool) -> Path:
    path = Path(out)
    if path.suffix not in ((".gif",) if gif else (".mp4", ".gif")):
        raise ProxRLError(f"--out {path} must end in {'.gif, as --gif says' if gif else '.mp4 or .gif'}")
    if path.exists():
        raise ProxRLError(f"{path} exists already; delete it, or give another --out")
    return path


class Progress:
    """A bar on a terminal, a line now and then elsewhere; a line for every episode."""

    PLAIN_SECONDS = 10.0

    def __init__(self, episodes: int, max_steps: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.episodes, self.max_steps, self.steps = episodes, max_steps, 0
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task("recording", total=None)
        self.told_at = time.monotonic()

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def watch(self, moment: Moment, stage: Stage) -> None:
        self.steps += 1
        text = f"episode {moment.episode + 1}/{self.episodes}, step {moment.step:,}, return {moment.total:.2f}"
        if self.max_steps is not None:
            self.bar.update(self.task, description=text, total=self.max_steps, completed=self.steps)
        else:
            share = None if stage.limit is None else moment.episode + (1.0 if moment.finished else moment.step / stage.limit)
            total = None if share is None else float(self.episodes)
            self.bar.update(self.task, description=text, total=total, completed=share)
        if moment.finished:
            length, total_reward = moment.finished.length, moment.finished.total_reward
            self.bar.console.print(f"episode {moment.episode + 1}: return {total_reward:.2f}, {length:,} steps")
        elif self.bar.disable and time.monotonic() - self.told_at >= self.PLAIN_SECONDS:
            self.bar.console.print(text)
            self.told_at = time.monotonic()
