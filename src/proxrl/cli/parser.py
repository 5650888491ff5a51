"""How all commands read their flags and print their help. Only documented parts of argparse are used."""

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from proxrl.config.flags import Group
from proxrl.config.other_names import unknown_flag
from proxrl.errors import ProxRLError

HELP_COLUMN, MOST_COLUMNS = 34, 120


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line and whose help has one short entry per flag."""

    def __init__(self, command: str, description: str) -> None:
        self.actions: list[argparse.Action] = []  # those outside of groups
        self.groups: dict[str, ArgumentGroup] = {}  # by heading
        super().__init__(prog=f"proxrl {command}", description=description, allow_abbrev=False, add_help=False)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.actions.append(action)
        return action

    def add_group(self, heading: str) -> "ArgumentGroup":
        """Add a section of the help; use it instead of `add_argument_group`, which does not remember its arguments."""
        self.groups[heading] = ArgumentGroup(self.add_argument_group(heading))
        return self.groups[heading]

    def flags(self) -> list[str]:
        """Return the spelling of every flag."""
        actions = [*self.actions, *(action for group in self.groups.values() for action in group.actions)]
        return [flag for action in actions for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        raise ProxRLError(f"{message} ('{self.prog} --help' lists all arguments)")

    def check_flags(self, words: Sequence[str]) -> None:
        """Raise an error for a flag that does not exist. It suggests the setting that another library calls so, or a near one."""
        known = self.flags()
        for word in words:
            name = word.partition("=")[0]
            if word.startswith("--") and name not in known:
                raise ProxRLError(unknown_flag(name, known, self.prog))

    def format_usage(self) -> str:
        return " ".join(["usage:", self.prog, *map(_invocation, self.positionals()), "[flags]"]) + "\n"

    def format_help(self) -> str:
        flags = [action for action in self.actions if action.option_strings]
        groups = {heading: group.actions for heading, group in self.groups.items()}
        sections = {"arguments": self.positionals(), "flags": flags, **groups}
        width = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
        column = min(HELP_COLUMN, 4 + max(len(_invocation(action)) for section in sections.values() for action in section))
        texts = []
        for heading, section in sections.items():
            if section:
                texts.append(f"{heading}:\n" + "".join(_entry(action, column, width) for action in section))
        return "\n".join([self.format_usage(), str(self.description).rstrip() + "\n", *texts])

    def positionals(self) -> list[argparse.Action]:
        """Return the arguments that are given without a flag."""
        return [action for action in self.actions if not action.option_strings]


class ArgumentGroup:
    """A section of a command's help, with a heading."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.actions: list[argparse.Action] = []

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        action = self._group.add_argument(*names, **options)
        self.actions.append(action)
        return action


def _entry(action: argparse.Action, column: int, width: int) -> str:
    """Return the lines of one argument: its spelling, and its meaning from `column` on, below it if the spelling is too long."""
    spelling = f"  {_invocation(action)}"
    text = (action.help or "").replace("(default ", "(default\N{NO-BREAK SPACE}")
    lines = textwrap.wrap(text, max(width - column, 20), break_on_hyphens=False)
    first = "" if len(spelling) > column - 2 or not lines else lines.pop(0)
    rows = [f"{spelling:<{column}}{first}", *(" " * column + line for line in lines)]
    return "".join(row.replace("\N{NO-BREAK SPACE}", " ").rstrip() + "\n" for row in rows)


def _invocation(action: argparse.Action) -> str:
    """Return an argument as one types it: `--[no-]flag`, `-h, --help`, `--flag NAME ...`, `[RUN ...]`."""
    value = "|".join(map(str, action.choices)) if action.choices and action.metavar is None else str(action.metavar or "")
    value += " ..." * (action.nargs in ("+", "*"))
    if not action.option_strings:
        return f"[{value}]" if action.nargs in ("?", "*") else value
    if isinstance(action, argparse.BooleanOptionalAction):
        return action.option_strings[0].replace("--", "--[no-]", 1)
    return f"{', '.join(action.option_strings)} {value}".rstrip()
