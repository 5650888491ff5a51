"""The run folder `runs/<env>/<name>/seed<k>/`: its files, and which process may write to it."""

import contextlib
import dataclasses
import itertools
import json
import os
import platform
import re
import shutil
import tomllib
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from proxrl.common.files import acquire_lock, is_locked, one_line_errors, process_exists, read_regular, replacing
from proxrl.common.trust import ANCHOR, STAMP
from proxrl.config import CHANGEABLE_ON_RESUME, Config, flag
from proxrl.config.code import code_settings, declare_own, is_own, refusal, untrusted_settings
from proxrl.config.parse import as_words, parse_settings, read_toml, save_toml
from proxrl.config.validate import check_name
from proxrl.errors import ProxRLError
from proxrl.runs.changes import ALLOWED, Change, changes_between, record_changes
from proxrl.runs.machine import circumstances

if TYPE_CHECKING:  # not at run time, so that listing runs does not import torch
    import torch

RunState = Literal["running", "finished", "stopped", "failed"]

# In the front matter of every model card; a README.md without it was not written by ProxRL.
CARD_MARK = "library_name: proxrl"

# All files that ProxRL writes to a run folder, apart from config.toml and run.lock, which --clobber keeps.
RUN_FILES = (
    "metrics.jsonl",
    "status.json",
    "wandb_id",
    "report.html",
    "evaluations.json",
    "changes.jsonl",
    "origin.json",
    STAMP,
    ANCHOR,
    "events.out.tfevents.*",
    "checkpoints/*.safetensors",
    "checkpoints/.*.tmp",
    *(
        f"videos/{name}.{kind}"
        for name in ("step-*", "latest-step*", "best-step*", "checkpoint-step*")
        for kind in ("mp4", "gif")
    ),
    ".*.tmp",
)
# Deleted only if there is a model card, since the user may have a folder of that name. The card is deleted last.
EXPORT_FILES = ("export/policy.onnx", "export/policy.pt2", "export/settings.toml", "export/README.md")
RUN_SUBFOLDERS = ("checkpoints", "videos", "export")
LOCK_NAME = "run.lock"
LONGEST_HEADER = 100_000_000  # bytes of a checkpoint's header that are read to find its step
RUNS_DIR = "runs"  # the folder of all runs, unless --runs-dir names another


def folder_name(env: str) -> str:
    """Return an environment id as one folder name, without leading dots, so that no id can point outside the runs folder."""
    return re.sub(r'[/\\:*?"<>|\s]', "-", env).lstrip(".") or "env"


def run_folder(runs_dir: Path, env: str, name: str, seed: int) -> Path:
    """Return the folder of a run."""
    return Path(runs_dir) / folder_name(env) / name / f"seed{seed}"


def earlier_config(runs_dir: Path, config: Config) -> Config | None:
    """Return the config of the run that this one would resume, or None if there is no checkpoint."""
    check_name(config.name)
    folder = RunFolder(run_folder(runs_dir, config.env, config.name, config.seed))
    try:
        resumes = folder.latest_checkpoint() is not None
    except OSError as error:
        raise ProxRLError(f"can't look for earlier runs in {folder.path}: {error.strerror}; use another --runs-dir") from error
    return folder.unchecked_config() if resumes else None


def check_resumable(saved: Config, now: Config, path: Path | None = None, allowed: Collection[str] = ()) -> None:
    """Raise an error if a run can't be resumed with these settings, because they would make it a different run.

    Settings in `allowed` may differ.

    `path` is the run's config.toml: giving it is the shortest way to resume if several settings differ, as they do after a new
    version of ProxRL has changed a preset.
    """
    names = [spec.name for spec in dataclasses.fields(Config) if spec.name not in CHANGEABLE_ON_RESUME]
    different = [name for name in names if name not in allowed and not _same(getattr(saved, name), getattr(now, name))]
    if not different:
        return
    name, count = different[0], len(different) - 1
    before, after = getattr(saved, name), getattr(now, name)
    advice, others = _advice(name, before), ""
    if count and path is not None:
        advice, others = f"give --config {path}", f", and {count} other setting{'s differ' if count > 1 else ' differs'}"
    allow = f" --allow-change {name} to change it from now on," if name in ALLOWED and not count else ""
    raise ProxRLError(
        f"{flag(name)} is {_shown(after)}, but this run was started with {_shown(before)}{others}:"
        f" {advice} to resume it,{allow} --clobber to start over, or another --name to keep both"
    )


def _same(before: Any, after: Any) -> bool:
    # Compared as JSON, because a tuple among the environment's arguments is loaded from config.toml as a list.
    return bool(json.loads(json.dumps(before, default=str)) == json.loads(json.dumps(after, default=str)))


def _advice(name: str, value: Any) -> str:
    """Return what to do to give a setting this value."""
    if isinstance(value, bool):
        return f"give {flag(name) if value else flag('no_' + name)}"
    return f"leave out {flag(name)}" if value == {} else f"give {flag(name)} {_shown(value)}"


def _shown(value: Any) -> str:
    return " ".join(as_words(value)) or "empty"


class RunFolder:
    """One run on disk. `create` locks it for this process; `close`, or the end of the process, frees the lock."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.status_path = self.path / "status.json"
        self.evaluations_path = self.path / "evaluations.json"
        self.checkpoints = self.path / "checkpoints"
        self.videos = self.path / "videos"
        self.changes_path = self.path / "changes.jsonl"
        self.origin_path = self.path / "origin.json"
        self.changed: list[Change] = []  # by `create`
        self._lock: IO[bytes] | None = None

    def checkpoint_path(self, name: str) -> Path:
        return self.checkpoints / f"{name}.safetensors"

    def config(self, trust: bool = False) -> Config:
        """Return the settings of the run. Raises a ProxRLError if they name code that is neither one's own nor trusted.

        `trust` declares this code as trusted from now on.
        """
        return self.config_for(trust)[0]

    def config_for(self, trust: bool, unused: Collection[str] = ()) -> tuple[Config, dict[str, Any]]:
        """Return the same for a caller that does not import the code of the settings `unused`; and those that it must not import.

        The settings are read once, because somebody else could change the file between two readings.
        """
        settings = self.settings()
        untrusted = untrusted_settings(settings, self.path, trust)
        used = {name: value for name, value in untrusted.items() if name not in unused}
        if used:
            raise refusal(str(self.path), used)
        return parse_settings(settings).validate(), untrusted

    def unchecked_config(self) -> Config:
        """Return the settings without importing what they name, to compare them with others."""
        return parse_settings(self.settings())

    def settings(self) -> dict[str, Any]:
        """Return the settings as written in config.toml, by whichever version."""
        return read_toml(self.config_path)

    def create(self, config: Config, clobber: bool = False, allowed: Collection[str] = ()) -> Path | None:
        """Lock the folder for this run. Return the checkpoint to resume from, or None to start at step 0.

        Settings in `allowed` may differ from those with which the run was started; what differs is recorded.
        """
        with one_line_errors("use the run folder", self.path):
            self._check_is_run()
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_links(LOCK_NAME, self.metrics_path.name, self.changes_path.name)  # which are written in place
            self._acquire_lock()
            try:
                if self.config_path.exists() and clobber:
                    self._delete_run()
                elif self.config_path.exists():
                    before = self._saved_config()
                    if self.latest_checkpoint() is not None:  # without a checkpoint, all settings may change
                        check_resumable(before, config, self.config_path, allowed)
                        self.changed = changes_between(before, config, allowed, self.checkpoint_step() or 0)
                for leftover in self._leftovers():
                    leftover.unlink()
                with replacing(self.config_path) as temporary:
                    save_toml(config, temporary)
                record_changes(self.changes_path, self.changed)
                self._declare_own()
                self.checkpoints.mkdir(exist_ok=True)
            except BaseException:
                self.close()
                raise
        return self.latest_checkpoint()

    def _declare_own(self) -> None:
        """Record that this user made the run, if its settings name code: other commands may then import it."""
        code = code_settings(self.settings())
        if code and not is_own(self.path, code):
            declare_own(self.path, code)

    def close(self) -> None:
        """Free the lock."""
        # The file is kept: if it were deleted, a waiting process would lock a file that a third one no longer sees.
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest_checkpoint(self) -> Path | None:
        """Return the checkpoint to resume from: `latest`, otherwise the `step-*` or `best` with the most steps, or None."""
        return next(iter(self._resume_order()), None)

    def load_latest(self) -> "tuple[dict[str, torch.Tensor], dict[str, Any]] | None":
        """Load the checkpoint to resume from; if it is damaged, the error says which file to delete and what happens then."""
        from proxrl.runs import checkpoint

        path = self.latest_checkpoint()
        if path is None:
            return None
        try:
            return checkpoint.load(path)
        except checkpoint.DamagedCheckpointError as error:
            raise ProxRLError(self.damage_advice(path, error.problem)) from error

    def load_checkpoint(self, name: str, option: str = "--checkpoint") -> "tuple[dict[str, torch.Tensor], dict[str, Any]]":
        """Load a checkpoint by name; if it is missing or damaged, the error says which values of the flag `option` would work."""
        from proxrl.runs import checkpoint

        path = self.checkpoint_path(name)
        if not path.exists():
            names = sorted(entry.name.removesuffix(".safetensors") for entry in path.parent.glob("*.safetensors"))
            raise ProxRLError(f"{self.path} has no checkpoint {name!r}; it has {', '.join(names) or 'none yet'}")
        try:
            return checkpoint.load(path)
        except checkpoint.DamagedCheckpointError as error:
            intact = [f"{option} {other} (step {step:,})" for other, step in self.intact_checkpoints().items()]
            advice = f"use {' or '.join(intact)}" if intact else "that run has no intact one"
            raise ProxRLError(f"{error.problem}; {advice}") from error

    def damage_advice(self, path: Path, problem: str) -> str:
        """Return a message about a damaged checkpoint that says what deleting it would do, and what is lost."""
        others = [other for other in self._resume_order() if other != path]
        intact = self.intact_checkpoints(others, most=1)
        damaged = [other.name for other in itertools.takewhile(lambda other: other.stem not in intact, others)]
        files = " and ".join(["that file", *damaged])
        if not intact:
            return f"{problem}; delete {files} to start over from step 0"
        name, step = next(iter(intact.items()))
        last = self.read_status().get("step")
        lost = f", losing the {last - step:,} steps after it" if isinstance(last, int) and last > step else ""
        return f"{problem}; delete {files} to resume from {name} at step {step:,}{lost}"

    def intact_checkpoints(self, paths: Iterable[Path] | None = None, most: int = 2) -> dict[str, int]:
        """Return the steps of the first checkpoints that can be loaded, by name. By default `best` is tried first, then `latest`
        and the others, the most recent ones first.
        """
        from proxrl.runs import checkpoint

        intact: dict[str, int] = {}
        for path in [self.checkpoint_path("best"), *self._resume_order()] if paths is None else paths:
            if len(intact) == most:
                break
            with contextlib.suppress(ProxRLError, OSError):
                intact[path.stem] = int(checkpoint.load(path)[1]["step"])
        return intact

    def is_locked(self) -> bool:
        """Return whether a process is training in this folder."""
        return is_locked(self.path / LOCK_NAME)

    def checkpoint_step(self, name: str = "latest") -> int | None:
        """Return the step of a checkpoint, read from its header, or None if it is missing or unreadable."""
        step = self.checkpoint_state(name).get("step")
        return step if isinstance(step, int) else None

    def checkpoint_state(self, name: str = "latest") -> dict[str, Any]:
        """Return the state of a checkpoint, read from its header; empty if it is missing or unreadable."""
        try:
            with open(self.checkpoint_path(name), "rb") as file:
                header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), LONGEST_HEADER)))
            state = json.loads(header["__metadata__"]["state"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, RecursionError):
            return {}
        return state if isinstance(state, dict) else {}

    def write_status(
        self,
        state: RunState,
        step: int,
        planned_steps: int,
        mean_return: float | None = None,
        best_return: float | None = None,
        success_rate: float | None = None,
        finished_by: str | None = None,
    ) -> None:
        """Write the progress of the run, and the versions, machine and git commit that it is computed with."""
        status = {
            "state": state,
            "step": step,
            "planned_steps": planned_steps,
            "mean_return": mean_return,
            "best_return": best_return,
            "success_rate": success_rate,
            "finished_by": finished_by,
            "pid": os.getpid(),
            "host": platform.node(),
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            **circumstances(),
        }
        with one_line_errors("write", self.status_path), replacing(self.status_path) as temporary:
            temporary.write_text(json.dumps(status, indent=2) + "\n")

    def read_status(self) -> dict[str, Any]:
        """Return what `write_status` wrote; empty if there is no readable file."""
        try:
            status = json.loads(read_regular(self.status_path))
        except (OSError, ValueError, RecursionError):
            return {}
        return status if isinstance(status, dict) else {}

    def _resume_order(self) -> list[Path]:
        latest = self.checkpoint_path("latest")
        steps = {path: re.fullmatch(r"step-(\d+)", path.stem) for path in self.checkpoints.glob("step-*.safetensors")}
        numbered = [(int(match[1]), path) for path, match in steps.items() if match]
        best = self.checkpoint_path("best")
        numbered += [(self.checkpoint_step("best") or 0, best)] * best.exists()
        # Of two with the same step, `step-*`: `best` may have been saved before the callbacks of that iteration were called.
        numbered.sort(key=lambda entry: (entry[0], entry[1] != best), reverse=True)
        return [latest] * latest.exists() + [path for _, path in numbered]

    def _check_is_run(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ProxRLError(f"{self.path} is a file, not a run folder; move it away or use another --name")
        if self.config_path.exists() or not self.path.exists():
            return
        # A run killed right after its creation leaves a lock and a temporary file, and may be started again.
        if any(item.name != LOCK_NAME and not item.match(".*.tmp") for item in self.path.iterdir()):
            raise ProxRLError(
                f"{self.path} is not empty and has no config.toml, so it is not a ProxRL run; move it away or use another --name"
            )

    def _delete_run(self) -> None:
        """Delete all files that ProxRL wrote, except config.toml and the lock."""
        try:
            is_config = {"env", "rollout_steps"} <= tomllib.loads(self.config_path.read_text(encoding="utf-8")).keys()
        except ValueError:
            is_config = False
        if not is_config:
            raise ProxRLError(f"{self.config_path} was not written by ProxRL; delete {self.path} yourself or use another --name")
        self._refuse_links(*RUN_SUBFOLDERS)
        for pattern in (*RUN_FILES, *(EXPORT_FILES if is_card(self.path / "export" / "README.md") else ())):
            for path in self.path.glob(pattern):
                path.unlink()
        if (self.path / "wandb").is_dir():
            shutil.rmtree(self.path / "wandb")
        for name in RUN_SUBFOLDERS:
            with contextlib.suppress(OSError):  # it does not exist, or holds other files
                (self.path / name).rmdir()

    def _refuse_links(self, *names: str) -> None:
        """Raise an error if one of these is a link: in somebody else's folder it may lead to any file of this user."""
        for name in names:
            if (self.path / name).is_symlink():
                raise ProxRLError(f"{self.path / name} is a link, and what it leads to must not be changed; replace it by a copy")

    def _leftovers(self) -> Iterator[Path]:
        """Yield temporary files that a killed process has left.

        We hold the lock, so nobody else is writing the files of training. In the folders that other commands write to,
        another process may be writing, so its temporary files are kept as long as it exists.
        """
        for folder, pattern in ((self.path, ".*.tmp"), (self.checkpoints, ".*.tmp"), (self.videos, ".step-*.tmp")):
            yield from folder.glob(pattern)
        for folder in (self.videos, self.path / "export"):
            for path in folder.glob(".*.tmp"):
                owner = re.fullmatch(r"\.(?!step-).+\.(\d+)\.tmp", path.name)
                if owner is not None and not process_exists(int(owner[1])):
                    yield path

    def _saved_config(self) -> Config:
        try:
            return self.unchecked_config()
        except ProxRLError as error:
            raise ProxRLError(f"{self.config_path}: {error}; repair that file, or use --clobber to start over") from error

    def _acquire_lock(self) -> None:
        busy = f"is already training in {self.path}; wait for it, or use another --name"
        self._lock = acquire_lock(self.path / LOCK_NAME, busy)


def is_card(path: Path) -> bool:
    """Return whether `proxrl export` wrote this README.md."""
    return path.is_file() and CARD_MARK in path.read_text(encoding="utf-8", errors="replace")
