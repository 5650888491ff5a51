"""Check an environment for faults that spoil PPO training. `check(env)` returns the report of `proxrl check`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxrl.check.checker import check

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    """Import `check` on first use, so that its helper modules can be imported without all of the checker."""
    if name == "check":
        from proxrl.check.checker import check

        return check
    raise AttributeError(f"module 'proxrl.check' has no attribute {name!r}")
