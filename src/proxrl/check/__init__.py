"""Check an environment for faults that spoil PPO training. `check(env)` returns the report of `proxrl check`."""

from proxrl.check.checker import check

__all__ = ["check"]
