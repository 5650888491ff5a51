"""`proxrl record`: writes episodes of a trained policy to a video, without a display."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from proxrl.common.files import one_line_errors, replacing
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.common.video import VideoWriter, import_ffmpeg
from proxrl.engine.threads import arithmetic
from proxrl.errors import ProxRLError, check_at_least
from proxrl.log.bar import TransientBar
from proxrl.look.agent import Agent, load
from proxrl.look.evaluation import check_agent_spaces, check_request, do_nothing, env_of
from proxrl.look.rendering import MAX_FPS, RenderedEnv, RenderedStep, open_rendered_env, rendered_steps
from proxrl.runs.folder import RUNS_DIR
from proxrl.runs.lookup import find_run
from proxrl.types import Episode

# Called after every step.
StepWatcher: TypeAlias = Callable[[RenderedStep, RenderedEnv], None]


@dataclass(frozen=True)
class Recording:
    """A video and its episodes. An episode that was cut off has no return."""

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
    trust: bool = False,
    watch: StepWatcher = do_nothing,
) -> Recording:
    """Write episodes of a run to one video: to `out`, or to a file in the run's `videos/`.

    `env` is for runs whose environment was a Python callable. `trust` allows a run that somebody else has made to import the code
    that its settings name. `watch` is called after every step.
    """
    check_request(episodes, seed)
    check_limits(fps, max_steps)
    import_ffmpeg()
    folder = find_run(run, runs_dir)
    agent = load(folder.path, checkpoint, device, trust=trust)
    # Not named step-N after the checkpoint: that is the name of what --capture-video recorded at that step.
    stem = f"{'checkpoint' if checkpoint.startswith('step-') else checkpoint}-step{agent.step}"
    stem += "" if seed is None else f"-seed{seed}"
    path = check_out(out, gif) if out else folder.videos / f"{stem}{'-deterministic' if deterministic else ''}.mp4"
    path = path.with_suffix(".gif") if gif else path
    with open_agent_env(agent, env, "record") as rendered:
        steps = limit_steps(agent_steps(rendered, agent, seed, deterministic), episodes, max_steps)
        return write_video(rendered, steps, path, fps or rendered.fps, watch)


def write_video(
    rendered: RenderedEnv, steps: Iterable[RenderedStep], path: Path, fps: float, watch: StepWatcher = do_nothing
) -> Recording:
    """Write the frames of the steps to a file, which appears under its name once it is complete."""
    finished: list[Episode] = []
    with one_line_errors("write", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with one_line_errors("write", path), replacing(path) as temporary:
        temporary.touch()  # raises before any step is taken if the file can't be written
        with VideoWriter(temporary, fps, gif=path.suffix == ".gif", name=path) as writer:
            for step in steps:
                for frame in step.frames:
                    writer.add(frame)
                finished += [step.finished] if step.finished else []
                watch(step, rendered)
        if writer.blank:
            raise ProxRLError("every frame has a single color, so the video was discarded; does render() draw anything?")
    returns, lengths = tuple(episode.total_reward for episode in finished), tuple(episode.length for episode in finished)
    return Recording(path, writer.frames, returns, lengths)


@contextmanager
def open_agent_env(agent: Agent, env: Any, call: str) -> Iterator[RenderedEnv]:
    """Open the rendered environment of an agent's run; `call` is the function to name in an error message."""
    rendered = open_rendered_env(agent.config, env_of(agent, env, call))
    try:
        check_agent_spaces(rendered.environments, agent)
        with arithmetic(agent.config, agent.policy):
            yield rendered
    finally:
        rendered.environments.close()


def actions_of(deterministic: bool) -> str:
    """Return how actions are taken, for people."""
    return "most likely actions" if deterministic else "sampled actions"


def agent_steps(rendered: RenderedEnv, agent: Agent, seed: int | None, deterministic: bool) -> Iterator[RenderedStep]:
    seed = integer_seed(agent.config.seed, Purpose.EVALUATION) if seed is None else seed
    return rendered_steps(rendered, agent.compute, agent.policy, seed, deterministic)


def limit_steps(steps: Iterable[RenderedStep], episodes: int | None, max_steps: int | None) -> Iterator[RenderedStep]:
    """Yield steps until this many episodes are finished, or this many steps of all episodes are taken; None is no limit."""
    count = 0
    for step in steps:
        yield step
        count += len(step.frames) > 0
        finished = episodes is not None and step.finished is not None and step.episode + 1 == episodes
        if finished or (max_steps is not None and count >= max_steps):
            return


def check_limits(fps: float | None, max_steps: int | None = None) -> None:
    if fps is not None and not 0 < fps <= MAX_FPS:
        raise ProxRLError(f"--fps is {fps:g}, but must be greater than 0 and at most {MAX_FPS:g}")
    check_at_least("--max-steps", max_steps, 1)


def check_out(out: str | Path, gif: bool) -> Path:
    """Return the path of `--out`. Raises a ProxRLError if its suffix is wrong or the file exists."""
    path = Path(out)
    if path.suffix not in ((".gif",) if gif else (".mp4", ".gif")):
        raise ProxRLError(f"--out {path} must end in {'.gif, because of --gif' if gif else '.mp4 or .gif'}")
    if path.exists():
        raise ProxRLError(f"{path} exists already; delete it, or give another --out")
    return path


class RecordingProgress(TransientBar):
    """Prints a line for every finished episode, and shows a bar on a terminal or a line every ten seconds elsewhere."""

    def __init__(self, episodes: int, max_steps: int | None) -> None:
        super().__init__(sys.stdout, "recording")
        self.episodes, self.max_steps, self.steps = episodes, max_steps, 0
        self.printed_at = time.monotonic()

    def watch(self, step: RenderedStep, rendered: RenderedEnv) -> None:
        self.steps += 1
        text = f"episode {step.episode + 1}/{self.episodes}, step {step.length:,}, return {step.total_reward:.2f}"
        limit = rendered.max_episode_steps
        if self.max_steps is not None:
            self.update(text, self.steps, self.max_steps)
        elif limit is not None:
            self.update(text, step.episode + (1.0 if step.finished else step.length / limit), self.episodes)
        else:
            self.update(text, None, None)
        if step.finished:
            total_reward, length = step.finished.total_reward, step.finished.length
            self.output.print(f"episode {step.episode + 1}: return {total_reward:.2f}, {length:,} steps")
        elif not self.output.redraws and time.monotonic() - self.printed_at >= self.output.interval:
            self.output.print(text)
            self.printed_at = time.monotonic()
