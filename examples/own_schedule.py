"""A custom schedule: any function (step, planned_steps) -> value, for any coefficient.

python examples/own_schedule.py
proxrl train CartPole-v1 --entropy-coef examples.own_schedule:explore_first
"""

import json

import proxrl


def explore_first(step: int, planned_steps: int) -> float:
    """Return 0.02 for a quarter of the run, then half as much after each further eighth."""
    progress = step / planned_steps
    return 0.02 if progress < 0.25 else 0.02 * 0.5 ** ((progress - 0.25) / 0.125)


if __name__ == "__main__":
    result = proxrl.train("CartPole-v1", entropy_coef=explore_first, total_steps=20_480, clobber=True)
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    for line in lines[:: len(lines) // 4]:
        print(f"until step {line['step']}: entropy_coef {line['charts/entropy_coef']:.5f}")
