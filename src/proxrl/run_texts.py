"""What a run tells people: its opening and closing lines, and its `Result`."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from proxrl.common.numbers import format_number
from proxrl.config import Config
from proxrl.log.console import Console
from proxrl.runs.notebook import curve_svg, return_curve, table
from proxrl.world.api import World


@dataclass(frozen=True)
class Result:
    """Where a run is, and how it went."""

    path: Path
    env: str
    step: int
    mean_return: float | None  # of the last episodes, 100 at most
    episodes: int  # how many they are
    best_return: float | None
    finished: bool
    signal: int | None  # the signal that stopped it early, if one did
    success_rate: float | None = None  # of the same episodes, if their infos told
    finished_by: str | None = None  # the rule that ended it before its step budget was spent, if one did

    def __str__(self) -> str:
        return ", ".join(f"{name} {text}" if name else text for name, text in self._items().items())

    def _repr_html_(self) -> str:
        curve = curve_svg(return_curve(self.path), f"Returns of {self.env}")
        return f"<div>{table((), [(name or 'run', text) for name, text in self._items().items()])}{curve}</div>"

    def _items(self) -> dict[str, str]:
        """Return what a person wants to read of it, by name."""
        state = "finished" if self.finished else "unfinished"
        state += f" ({self.finished_by})" if self.finished_by else ""
        items = {"": f"{self.env} {state}", "step": f"{self.step:,}", "return": "none yet: no episode has finished"}
        if self.mean_return is not None:
            items["return"] = f"{format_number(self.mean_return)} over the last {self.episodes} episodes"
        if self.best_return is not None:
            items["best"] = format_number(self.best_return)
        if self.success_rate is not None:
            items["success rate"] = f"{self.success_rate:.0%}"
        return items | {"in": str(self.path)}


def opening(config: Config, path: Path, start_step: int, world: World, finished_by: str | None = None) -> str:
    rounded = f", {config.total_steps:,} asked for" if config.planned_steps != config.total_steps else ""
    ranks = "" if world.size == 1 else f"{world.size} ranks ({world.kind}) x "
    rollout = f"{config.num_envs // world.size} envs ({config.vector}) x {config.rollout_steps} steps"
    epochs = sum(phase.epochs for phase in config.phases(config.learning_starts))
    update = f"{epochs} epochs x {config.num_minibatches} minibatches of {minibatch(config)}"
    # Dummy steps of next-step autoreset do not count as steps, so they may take more iterations.
    least = "at least " if config.vector in ("native", "envpool") else ""
    total = f"{config.planned_steps:,} steps ({least}{config.iterations:,} iteration{'s' * (config.iterations != 1)}{rounded})"
    lines = [
        f"Training {config.env} for {total}",
        f"Each iteration: {ranks}{rollout} = a batch of {config.batch_size:,},"
        f" then {update} = {epochs * config.num_minibatches:,} optimizer steps",
        *memory_lines(config),
        f"Run folder {path}",
    ]
    if finished_by is not None:
        lines.append(f"Already done: {finished_by}; another value of that flag, or off, goes on from here, --clobber starts over")
    elif start_step >= config.planned_steps:
        lines.append("Already done; a larger --total-steps goes on from here, --clobber starts over")
    elif start_step:
        lines.append(f"Resuming at step {start_step:,}; --clobber starts over")
    return "\n".join(lines)


def minibatch(config: Config) -> str:
    """Return the size of a minibatch and, for a policy with a memory, of the sequences that it consists of."""
    if config.memory is None:
        return f"{config.minibatch_size:,}"
    length = config.steps_per_sequence
    about = "about " if config.batch_size // length % config.num_minibatches else ""
    return f"{about}{config.minibatch_size:,} in sequences of {length:,}"


def memory_lines(config: Config) -> list[str]:
    if config.memory is None:
        return []
    layers = f"{config.memory_layers} layer{'s' * (config.memory_layers > 1)}"
    return [f"The policy has a memory: {config.memory}, {layers} of {config.memory_size:,}"]


def closing(result: Result, config: Config, display: Console) -> str:
    """Return the last lines of a run: its curve, its return, and what to do next."""
    score = "no episode has finished yet"
    if result.mean_return is not None:
        score = f"return {format_number(result.mean_return)} over the last {result.episodes} episodes"
        score += f", best {format_number(result.best_return)}" if result.best_return is not None else ""
        score += f", success rate {result.success_rate:.0%}" if result.success_rate is not None else ""
    if result.finished:
        rate = display.steps_per_second
        took = f"Took {display.elapsed()} at {rate:,.0f} steps/s. " if rate else ""  # nothing, if the run was done before
        rule = f" by rule: {result.finished_by};" if result.finished_by else ":"
        last = f"Done at step {result.step:,}{rule} {score}.\n{took}Next:{next_commands(result, config)}"
    else:
        last = f"Stopped at step {result.step:,}: {score}. Saved in {result.path}; the same command resumes."
    return "\n".join(filter(None, [display.curve(), last]))


def next_commands(result: Result, config: Config) -> str:
    """Return the commands that look at a run, on a line each; or the call that does, on the same line."""
    # An environment or network that other processes can't import can be evaluated from this program only.
    named = [word for value in vars(config).values() for word in (value if isinstance(value, tuple) else (value,))]
    nameless = "__main__" in result.env or "<" in result.env
    if nameless or any(str(word).startswith("__main__:") for word in named):
        return f" proxrl.evaluate({str(result.path)!r}{', env=...' if nameless else ''}) from Python"
    path = shlex.quote(str(result.path))
    commands = {
        "eval": "its return over 20 episodes",
        "play": "in a window; record: as a video",
        "report": "curves, settings, evaluations",
    }
    width = max(map(len, commands))
    return "".join(f"\n  proxrl {name:<{width}} {path}  # {text}" for name, text in commands.items())
