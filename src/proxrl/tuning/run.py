"""A study from its first trial, or where it was left, to its last. Behind `proxrl.tune` and the command."""

import contextlib
import functools
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxrl.common.files import one_line_errors, replacing
from proxrl.common.imports import name_of
from proxrl.common.signals import stopping_signals
from proxrl.config import CHANGEABLE_ON_RESUME, Config, flag
from proxrl.config.parse import parse_value, toml_value
from proxrl.config.resolve import Resolved, resolve
from proxrl.envs.registry import find_family
from proxrl.errors import ProxRLError, check_at_least
from proxrl.runs.folder import earlier_config
from proxrl.tuning.display import Display
from proxrl.tuning.outcome import settings_of, table, write_preset
from proxrl.tuning.pool import Pool, Running, Worker
from proxrl.tuning.space import Space, load_space, starting_point
from proxrl.tuning.study import INDEX, NOTE, PARTS, Study, StudyFolder, require_optuna
from proxrl.tuning.worker import Done, Failed, Lost, Message, Report, Stopped, Task
from proxrl.world.launcher import launched

SHARE_OF_PRESET = 5  # a trial trains for a fifth of what the preset does
WAIT_SECONDS = 0.25
MEASURE = "mean return of the last 100 episodes"
DIED = "its worker died"
# What a study is asked for, rather than fixed by a flag of that name.
RESERVED = ("name", "world")


@dataclass(frozen=True)
class Tuned:
    """Where a study is and how it stands."""

    path: Path
    preset: Path | None  # of the best settings
    trials: int  # that are done
    score: float | None  # the best
    settings: dict[str, Any]  # the best, of what was varied
    signal: int | None  # what stopped it early, if anything did


def tune(
    env: str | Callable[..., Any],
    *,
    trials: int = 50,
    workers: int = 1,
    total_steps: int | None = None,
    seeds: int = 1,
    seed: int = 1,
    timeout: float | None = None,
    study: str = "tune",
    preset: str | None = None,
    search: str | Path | None = None,
    out: str | Path | None = None,
    studies_dir: str | Path = "studies",
    prune: bool = True,
    clobber: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Tuned:
    """Look for better settings than the preset's, or go on with the study that the same arguments began.

    Each trial trains `seeds` runs of `total_steps`; its score is their mean return of the last 100 episodes. `settings` are
    fields of `Config` that all trials share. Worker processes import the main script again: keep its work under
    `if __name__ == "__main__":`. A signal that stops it early is held back until the trials are saved, and is in the result.
    """
    require_optuna()
    for name, value in (("trials", trials), ("workers", workers), ("seeds", seeds)):
        check_at_least(flag(name), value, 1)
    if timeout is not None and not timeout > 0:
        raise ProxRLError(f"--timeout is {timeout:g}, but must be above 0 seconds")
    if launched().size > 1:
        raise ProxRLError(f"tune starts processes of its own: run it once, without {launched().launcher}, and give --workers")
    for name in RESERVED:
        if name in settings:
            raise ProxRLError(f"the study sets {flag(name)} for each trial; leave it out")
    env_name = env if isinstance(env, str) else name_of(env)
    start = resolve(env_name, settings, preset)
    family = find_family(env_name)
    space = load_space(preset or family.preset, family.preset, None if search is None else Path(search), settings)
    share = max(1, start.config.total_steps // SHARE_OF_PRESET)
    budget = share if total_steps is None else parse_value("total_steps", total_steps)
    base = start.config.replace(total_steps=budget, seed=parse_value("seed", seed)).validate()
    with StudyFolder(Path(studies_dir), env_name, study) as folder:
        text = Path(preset).read_bytes() if preset and preset.endswith(".toml") else None
        if clobber:
            folder.delete()
        if text is not None:
            # Every trial reads it again, and it may be changed meanwhile, or lie where --clobber deletes.
            with one_line_errors("write", folder.start), replacing(folder.start) as temporary:
                temporary.write_bytes(text)
            preset = str(folder.start)
        kept = Study(folder, definition_of(base, space, seeds), space, base, base.seed, prune)
        with (
            stopping_signals("" if quiet else "stopping") as received,
            contextlib.closing(Display(trials, seeds, len(kept.done()), quiet)) as display,
        ):
            best = folder.best if out is None else Path(out)
            tuning = Tuning(kept, display, start, settings, preset, seeds, trials, best)
            tuning.go_on(workers, received, timeout)
            return tuning.close(received)


def definition_of(base: Config, space: Space, seeds: int) -> dict[str, str]:
    """What makes the scores of two trials comparable."""
    # Where environments run may depend on the trial; where anything computes does not matter.
    left_out = CHANGEABLE_ON_RESUME - {"total_steps"} | {"vector", "name", "num_minibatches"} | space.keys()
    fixed = {flag(name): toml_value(getattr(base, name)) for name in base.__dataclass_fields__ if name not in left_out}
    if "num_minibatches" not in space and "minibatch_size" not in space:
        fixed["--num-minibatches"] = str(base.num_minibatches)
    return fixed | {"--seeds": str(seeds)} | {f"the search of {name}": str(dimension) for name, dimension in space.items()}


def outside_the_space(space: Space, base: Config) -> str:
    """A line about what the first trial can't take from the preset."""
    names = [name for name in space if name not in starting_point(space, base)]
    return f"\nThe first trial draws {', '.join(names)}: the preset's own lies outside what is varied" if names else ""


class Tuning:
    """One session of a study."""

    def __init__(
        self,
        study: Study,
        display: Display,
        start: Resolved,
        fixed: dict[str, Any],
        preset: str | None,
        seeds: int,
        trials: int,
        out: Path,
    ) -> None:
        self.study, self.display, self.start, self.fixed, self.preset = study, display, start, fixed, preset
        self.seeds, self.trials, self.out = seeds, trials, out
        self.runs = f"{seeds} runs" if seeds > 1 else "a run"

    def go_on(self, workers: int, received: list[int], timeout: float | None) -> None:
        base, done = self.study.base, len(self.study.done())
        self.display.message(
            f"Tuning {base.env} in {self.trials} trials, each {self.runs} of {base.total_steps:,} steps;"
            f" score: {MEASURE}\nVaries {', '.join(self.study.space)}\nStudy {self.study.folder.path}"
            + outside_the_space(self.study.space, base)
            + (f"\nGoing on after {done} trials; --clobber starts over" if done else "")
        )
        deadline = None if timeout is None else time.monotonic() + timeout
        pool = Pool(min(workers, max(1, self.trials - done)), self.study.folder.path)
        try:
            while not received and (deadline is None or time.monotonic() < deadline):
                while pool.has_room and len(self.study.done()) + len(pool.running) < self.trials:
                    self.begin(pool)
                if not pool.running:
                    break
                self.display.update(pool.running)
                for worker, running, message in pool.messages(WAIT_SECONDS):
                    self.take(worker, running, message)
        finally:
            unfinished = pool.running
            pool.close()
            for running in unfinished:
                self.study.queue_again(running.trial.number)

    def begin(self, pool: Pool) -> None:
        trial, settings = self.study.begin()
        index, earlier = trial.user_attrs[INDEX], functools.partial(earlier_config, self.study.folder.runs)
        asked = {**self.fixed, **settings, "total_steps": self.study.base.total_steps, "name": f"trial-{index}"}
        try:
            configs = [
                resolve(self.start.config.env, {**asked, "seed": seed}, self.preset, earlier).config
                for seed in range(self.study.base.seed, self.study.base.seed + self.seeds)
            ]
        except ProxRLError as error:  # these settings don't go together
            self.end(trial, index, f"not possible: {error}")
            return
        pool.give(Running(trial, index), Task(self.study.folder.runs, tuple(configs)))

    def take(self, worker: Worker, running: Running, message: Message) -> None:
        trial, index = running.trial, running.index
        if isinstance(message, Report):
            running.part, running.value = message.part, message.value
            with contextlib.suppress(OSError):  # it died since
                worker.pipe.send(self.study.report(trial, message.part, message.value))
            return
        worker.running = None
        if isinstance(message, Done):
            best = max((other.values[0] for other in self.study.ranked()), default=None)
            self.study.complete(trial, message.score)
            if best is None or message.score > best:
                self.write()
            self.tell(index, f"score {message.score:,.1f}")
        elif isinstance(message, Stopped) and message.pruned:
            share = 100 * running.part // (self.seeds * PARTS)
            self.end(trial, index, f"given up at {share}% with {running.value:,.1f}")
        elif isinstance(message, Stopped):
            self.study.queue_again(trial.number)
        elif isinstance(message, Failed) and message.diverged:
            self.end(trial, index, "diverged")
        elif isinstance(message, Failed):
            self.fail(running, message.reason)
        elif isinstance(message, Lost):
            self.lose(running, message.how)

    def fail(self, running: Running, reason: str) -> None:
        """If nothing has worked yet, it is the environment or what all trials share: fifty failures would say no more."""
        if not any(trial.state.name in ("COMPLETE", "PRUNED") for trial in self.study.done()):
            self.study.queue_again(running.trial.number)
            raise ProxRLError(f"trial {running.index} failed: {reason}")
        self.end(running.trial, running.index, f"failed: {reason}", failed=True)

    def lose(self, running: Running, how: str) -> None:
        """Once may be chance, or somebody short of memory; twice is the trial."""
        what = f"{DIED} ({how}; its output is in {self.study.folder.path}/worker-*.log)"
        if running.trial.user_attrs.get(NOTE) == DIED:
            self.fail(running, what)
            return
        running.trial.set_user_attr(NOTE, DIED)
        self.study.queue_again(running.trial.number)
        self.display.message(f"trial {running.index}  {what}; trying it once more")

    def end(self, trial: Any, index: int, what: str, failed: bool = False) -> None:
        self.study.give_up(trial, what, failed)
        self.tell(index, what)

    def tell(self, index: int, what: str) -> None:
        ranked = self.study.ranked()
        best = f"best {ranked[0].values[0]:,.1f} (trial {ranked[0].user_attrs[INDEX]})" if ranked else ""
        self.display.trial(index, what, len(self.study.done()), best)

    def write(self) -> None:
        measure = f"{MEASURE}, at the end of {self.runs} of {self.study.base.total_steps:,} steps"
        write_preset(self.out, self.study, self.start, self.fixed, measure)

    def close(self, received: list[int]) -> Tuned:
        self.display.close()
        ranked, done = self.study.ranked(), len(self.study.done())
        number = received[0] if received and done < self.trials else None
        if ranked:
            self.write()
            self.display.message(f"\n{table(self.study)}\n")
        if done < self.trials:
            self.display.message(f"Stopped after {done} of {self.trials} trials; the same command goes on.")
        if ranked:
            env, out = shlex.quote(self.start.config.env), shlex.quote(str(self.out))
            self.display.message(f"Wrote {self.out}; next: proxrl train {env} --preset {out}")
        elif done >= self.trials:
            raise ProxRLError(f"none of {done} trials went all the way; {self.study.folder.path} has their runs")
        return Tuned(
            self.study.folder.path,
            self.out if ranked else None,
            done,
            ranked[0].values[0] if ranked else None,
            settings_of(self.study, ranked[0]) if ranked else {},
            number,
        )
