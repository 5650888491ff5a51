"""Run folders written without training."""

import json
from pathlib import Path

from proxrl.runs import checkpoint
from proxrl.runs.metrics import RETURN


def write_run(root: Path, env: str, name: str, seed: int, returns: list[float], **status: object) -> Path:
    """Write a run folder as training does, with these returns; return its path."""
    folder = root / env / name / f"seed{seed}"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'env = "{env}"\nname = "{name}"\nseed = {seed}\n')
    lines = [{"step": 100 * (n + 1), "time": n, RETURN: value} for n, value in enumerate(returns)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = {"state": "finished", "step": 100 * len(returns), "planned_steps": 100 * len(returns), "mean_return": returns[-1]}
    (folder / "status.json").write_text(json.dumps({**written, "best_return": max(returns), **status}))
    checkpoint.save(folder / "checkpoints/latest.safetensors", {}, {"step": 100 * len(returns)})
    return folder
