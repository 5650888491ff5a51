"""Metrics for Weights & Biases. A resumed run continues the same wandb run; account and mode are configured in wandb itself."""

import os
import secrets
from pathlib import Path
from typing import Any

from proxrl.common.files import one_line_errors, replacing
from proxrl.errors import ProxRLError

ID_NAME = "wandb_id"


class WandbLogger:
    """Sends metrics to wandb, or, with WANDB_MODE=offline, writes them to the run folder for `wandb sync`."""

    def __init__(self, folder: Path, config: dict[str, Any], name: str, quiet: bool = False) -> None:
        try:
            import wandb
        except ImportError:
            raise ProxRLError("logging to Weights & Biases needs its package: pip install 'proxrl[wandb]'") from None
        settings = wandb.Settings(silent=quiet, quiet=quiet, console="off")  # the terminal belongs to the live display
        run_id = _run_id(folder)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "proxrl"),
                name=name,
                id=run_id,
                resume="allow",
                dir=folder,
                config=config,
                settings=settings,
            )
        except Exception as error:  # of wandb, requests, and others
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ProxRLError(f"wandb can't start: {reason}; 'wandb login' or WANDB_MODE=offline may help") from error
        # The step is logged as a metric, because wandb's own step may only increase, and wandb would drop the steps that a
        # resumed run repeats.
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log({"global_step": step, **metrics})

    def log_video(self, step: int, path: Path) -> None:
        import wandb

        self._run.log({"global_step": step, "videos/episode": wandb.Video(str(path), format="mp4")})

    def close(self) -> None:
        self._run.finish()


def _run_id(folder: Path) -> str:
    """Return the wandb id of this run, which is stored in the run folder."""
    path = folder / ID_NAME
    with one_line_errors("write", path):
        if path.exists() and (run_id := path.read_text().strip()):
            return run_id
        run_id = secrets.token_hex(4)
        with replacing(path) as temporary:
            temporary.write_text(run_id + "\n")
    return run_id
