"""Weights & Biases. A resumed run continues the same run there; the account and the mode are wandb's own settings."""

import secrets
from pathlib import Path
from typing import Any

from proxrl.common.files import one_line_errors, replacing
from proxrl.errors import ProxRLError

ID_NAME = "wandb_id"


class WandbLogger:
    """Sends metrics to wandb, or with WANDB_MODE=offline to the run folder for `wandb sync`."""

    def __init__(self, folder: Path, config: dict[str, Any], name: str, project: str = "proxrl", quiet: bool = False) -> None:
        try:
            import wandb
        except ImportError:
            raise ProxRLError("logging to Weights & Biases needs its package: pip install 'proxrl[wandb]'") from None
        settings = wandb.Settings(silent=quiet, quiet=quiet, console="off")  # the live display owns the terminal
        identity = _identity(folder)
        try:
            self._run = wandb.init(
                project=project, name=name, id=identity, resume="allow", dir=folder, config=config, settings=settings
            )
        except Exception as error:  # wandb raises its own, requests', and others'
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ProxRLError(f"wandb can't start: {reason}; 'wandb login' or WANDB_MODE=offline may help") from error
        # wandb's own step may only rise, which would swallow what a resumed run repeats; so the step is a metric of its own.
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log({"global_step": step, **metrics})

    def log_video(self, step: int, path: Path) -> None:
        import wandb

        self._run.log({"global_step": step, "videos/episode": wandb.Video(str(path), format="mp4")})

    def close(self) -> None:
        self._run.finish()


def _identity(folder: Path) -> str:
    """The id of this run at wandb, made once and kept in the run folder."""
    path = folder / ID_NAME
    with one_line_errors("write", path):
        if path.exists() and (identity := path.read_text().strip()):
            return identity
        identity = secrets.token_hex(4)
        with replacing(path) as temporary:
            temporary.write_text(identity + "\n")
    return identity
