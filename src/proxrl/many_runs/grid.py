"""What --seeds and --sweep ask for, and how the runs of a sweep are named."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from proxrl.config import field_types, flag
from proxrl.config.other_names import unknown_setting
from proxrl.config.parse import as_words, parse_value
from proxrl.errors import ProxRLError
from proxrl.runs.folder import folder_name

MOST_RUNS = 10_000

# Why these settings can't be swept.
NOT_SWEPT = {
    "seed": "--seeds trains several seeds",
    "name": "each run of a sweep is named by what differs, with --name in front",
    "env": "give one command for each environment",
    "world": "each run is a process of its own",
}


def parse_seeds(words: Sequence[str]) -> list[int]:
    """Return the seeds that words such as `1`, `3-5` and `1,2` stand for."""
    seeds: list[int] = []
    for word in itertools.chain(*(entry.split(",") for entry in words)):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise ProxRLError(
                f"--seeds takes numbers and ranges, such as 1 2 3 or 1-5, not {word!r}; the environment comes first"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        check_count(len(seeds) + last - first + 1)
        seeds += range(first, last + 1)
    twice = [seed for seed, count in Counter(seeds).items() if count > 1]
    if twice:
        raise ProxRLError(f"--seeds names {twice[0]} twice: two runs can't share a folder")
    return seeds


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text: 1, 2, 3, 5 as `1-3, 5`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts) or "-"


def check_count(runs: int) -> None:
    if runs > MOST_RUNS:
        raise ProxRLError(f"{runs:,} runs are more than one command can start ({MOST_RUNS:,}); give fewer seeds or values")


@dataclass(frozen=True)
class Choice:
    """One value of a swept setting: of a whole setting, or of one entry of a table such as env_kwargs."""

    setting: str
    key: str | None
    value: Any

    @property
    def name(self) -> str:
        return self.setting if self.key is None else f"{self.setting}.{self.key}"

    @property
    def label(self) -> str:
        """The choice as it appears in names of runs, with characters that every file system allows."""
        return f"{folder_name(self.name)}={folder_name(value_label(self.value)).rstrip('.')}"


Point = tuple[Choice, ...]  # one value of each swept setting


def parse_sweeps(words: Sequence[str], given: Sequence[str] = ()) -> list[Point]:
    """Return the grid of all combinations of the values in words such as `learning_rate=1e-4,3e-4`.

    `given` are settings with a flag of their own. Without any words, the grid is one point with nothing swept.
    """
    dimensions = [parse_sweep(word) for word in words]
    names = [values[0].name for values in dimensions]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ProxRLError(f"--sweep names {name} twice; give all of its values at once, as in {name}=1,2,3")
        if name in given:
            raise ProxRLError(f"{flag(name)} and --sweep both set {name}; leave one of them out")
    check_count(math.prod(map(len, dimensions)))
    return list(itertools.product(*dimensions))


def parse_sweep(word: str) -> list[Choice]:
    """Return the values of one setting."""
    target, equals, text = word.partition("=")
    if not equals or not target or not text:
        example = "--sweep learning_rate=1e-4,3e-4"
        raise ProxRLError(f"--sweep takes NAME=VALUE,VALUE,... as in {example}, not {word!r}; the environment comes first")
    name, dot, key = target.partition(".")
    name = name.removeprefix("--").replace("-", "_")
    is_table = check_setting(name)
    if is_table != bool(dot and key):
        advice = f"name one of its entries, as in {name}.size=1,2" if is_table else f"leave out .{key}"
        raise ProxRLError(f"--sweep {target}: {name} is {'a table' if is_table else 'one value'}; {advice}")
    texts = split_values(word, text)
    choices = [Choice(name, key or None, parse_choice(name, key, part)) for part in texts]
    labels: dict[str, str] = {}
    for part, choice in zip(texts, choices, strict=True):
        other = labels.setdefault(choice.label.lower(), part)  # some file systems ignore case
        if other is not part:
            raise ProxRLError(f"--sweep {target}: {other} and {part} would be the same run; leave one of them out")
    return choices


def check_setting(name: str) -> bool:
    """Return whether a setting is a table; raise an error if it can't be swept."""
    if name in NOT_SWEPT:
        raise ProxRLError(f"--sweep can't vary {name}: {NOT_SWEPT[name]}")
    kind = field_types().get(name)
    if kind is None:
        raise ProxRLError(f"--sweep {name}: {unknown_setting(name, field_types())}")
    return get_origin(kind) is dict


def split_values(word: str, text: str) -> list[str]:
    """Split values at commas, except at those within brackets or a piecewise schedule."""
    parts: list[str] = []
    for part in text.split(","):
        before = parts[-1] if parts else ""
        within_brackets = sum(map(before.count, "[{(")) > sum(map(before.count, "]})"))
        if within_brackets or (before.startswith("piecewise:") and "@" in part and ":" not in part):
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    if not all(parts):
        raise ProxRLError(f"--sweep {word}: a value is missing between or after the commas")
    return parts


def parse_choice(name: str, key: str, text: str) -> Any:
    """Return one value of a sweep. Several words, as for --hidden-sizes, are separated by spaces."""
    if key:
        return parse_value(name, [f"{key}={text}"])[key]
    kind = field_types()[name]
    if kind is bool and text.lower() in ("on", "off"):  # as --help describes booleans
        text = "true" if text.lower() == "on" else "false"
    several = any(get_origin(option) is tuple for option in (kind, *get_args(kind)))
    return parse_value(name, text.split() if several else text)


def point_label(point: Point) -> str:
    return ",".join(choice.label for choice in point)


def run_name(prefix: str, point: Point) -> str:
    """Return the name of the runs of a point: the prefix, and what differs."""
    return f"{prefix}-{point_label(point)}" if point else prefix


def value_label(value: Any) -> str:
    """Return a value as text: numbers in their shortest form, so that 0.0001 and 1e-4 name the same run."""
    if isinstance(value, float):
        plain = f"{value:g}"
        digits, _, exponent = f"{value:e}".partition("e")
        short = f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
        exact = [text for text in (plain, short, repr(value)) if float(text) == value]
        return min(exact, key=len)
    return "-".join(as_words(value))
