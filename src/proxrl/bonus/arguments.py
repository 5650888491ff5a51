"""Checks of the keyword arguments that follow the name of a built-in bonus."""

import inspect
from typing import Any

from proxrl.errors import ProxRLError


def check_names(bonus: str, function: Any, kwargs: dict[str, Any]) -> None:
    """Raise an error that lists the arguments of a bonus if there is an unknown one."""
    known = [name for name in inspect.signature(function).parameters if name != "setup"]
    for name in kwargs:
        if name not in known:
            raise ProxRLError(f"--bonus {bonus} has no argument {name!r}; it takes {', '.join(known)}")


def check_number(bonus: str, name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ProxRLError(f"--bonus {bonus} {name}={value}: it must be a number from {least} to {most}")


def check_count(bonus: str, name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ProxRLError(f"--bonus {bonus} {name}={value}: it must be a whole number, at least {least}")


def check_switch(bonus: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ProxRLError(f"--bonus {bonus} {name}={value}: it must be true or false")
