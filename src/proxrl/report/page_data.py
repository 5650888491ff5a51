"""Collect the data of the page of `proxrl report` and `proxrl watch` from run folders, as one JSON document."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proxrl import __version__
from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.report.curves import CONFIDENCE
from proxrl.report.metrics_reader import POINTS, MetricsReader
from proxrl.report.published import published
from proxrl.report.repeat_command import repeat_command
from proxrl.runs.folder import RunFolder
from proxrl.runs.lookup import labels
from proxrl.runs.status import Summary, summarize

VIDEO_TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}


class PageRun:
    """One run as the page shows it. It only rereads files that have changed, so that frequent polling is cheap."""

    def __init__(self, folder: RunFolder, evaluations: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.id = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:12]
        self._evaluations = evaluations  # for a folder that could not be written to
        self._metrics = MetricsReader(folder)
        self._version = ""
        self._summary: Summary | None = None
        self._details: tuple[str, dict[str, Any]] | None = None
        self._command: tuple[tuple[int, int], str] | None = None

    def refresh(self) -> None:
        """Reread what has changed. A running run is always summarized again, because killing it changes no file."""
        version = self._files_version()
        if version != self._version or self._summary is None or self._summary.state == "running":
            if version != self._version:
                self._metrics.read()
            self._summary = summarize(self.folder, self._metrics.returns())
            self._version = version

    @property
    def summary(self) -> Summary:
        assert self._summary is not None, "call refresh first"
        return self._summary

    def _files_version(self) -> str:
        folder = self.folder
        files = (
            folder.config_path,
            folder.metrics_path,
            folder.status_path,
            folder.evaluations_path,
            folder.changes_path,
            *videos_of(folder),
        )
        states = [(path.name, *_time_and_size(path)) for path in files]
        return hashlib.sha256(repr(states).encode()).hexdigest()[:12]

    def head(self) -> dict[str, Any]:
        """Return the identity and state of the run, and the few numbers that change while it trains."""
        summary = self.summary
        seconds = self._metrics.last("time")
        speed = self._metrics.last("charts/SPS")
        changed = _time_and_size(self.folder.metrics_path)[0] / 1e9
        updated = max(changed, summary.updated.timestamp() if summary.updated else 0.0)
        return {
            "id": self.id,
            "version": self._version,
            "path": str(self.folder.path),
            "env": summary.env,
            "name": summary.name,
            "seed": summary.seed,
            "state": summary.state,
            "step": summary.step,
            "planned_steps": summary.planned_steps or summary.settings.get("total_steps"),
            "mean_return": summary.mean_return,
            "best_return": summary.best_return,
            "success_rate": summary.success_rate,
            "seconds": seconds,
            "steps_per_second": speed if speed is not None else summary.step / seconds if seconds else None,
            "updated": updated or None,
        }

    def details(self) -> dict[str, Any]:
        """Return everything else. Videos have only name and size; the caller adds their source."""
        if self._details is None or self._details[0] != self._version:
            status, summary = self.summary.status, self.summary
            details = {
                "evaluations": self._evaluations or summary.evaluations,
                "settings": summary.settings,
                "command": self._repeat_command(),
                "changes": [change._asdict() for change in summary.changes],
                "origin": None if summary.origin is None else str(summary.origin),
                "config_path": str(self.folder.config_path),
                "videos": [{"name": path.name, "size": _time_and_size(path)[1]} for path in videos_of(self.folder)],
                **{name: status.get(name) for name in ("versions", "machine", "git", "host")},
            }
            self._details = self._version, {**clean(details), "curves": self._metrics.downsampled()}
        return self._details[1]

    def _repeat_command(self) -> str:
        """Return the cached command unless the settings have changed: resolving them takes a while."""
        version = _time_and_size(self.folder.config_path)
        if self._command is None or self._command[0] != version:
            self._command = version, repeat_command(self.folder)
        return self._command[1]


def videos_of(folder: RunFolder) -> list[Path]:
    """Return the videos of a run, newest first. Links are skipped: in somebody else's folder they may lead to private files."""
    if folder.videos.is_symlink():
        return []
    files = (path for path in folder.videos.glob("*") if path.is_file() and not path.is_symlink())
    videos = [path for path in files if path.suffix in VIDEO_TYPES]
    return sorted(videos, key=lambda path: (-_time_and_size(path)[0], path.name))


def _time_and_size(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def refresh_all(runs: Sequence[PageRun]) -> tuple[list[PageRun], list[dict[str, str]]]:
    """Return the runs that can be read, and the errors of the others, so that a broken run does not hide the rest."""
    readable, unreadable = [], []
    for run in runs:
        try:
            run.refresh()
            readable.append(run)
        except ProxRLError as error:
            unreadable.append({"path": str(run.folder.path), "problem": str(error)})
    return readable, unreadable


def document(runs: Sequence[PageRun], live: bool = False) -> dict[str, Any]:
    """Return the data of the page without the details of the runs."""
    readable, unreadable = refresh_all(runs)
    heads = [run.head() for run in readable]
    names = labels([(run.folder.path, run.summary.env, run.summary.name) for run in readable])
    for head, label in zip(heads, names, strict=True):
        head["label"] = label
    envs = sorted({head["env"] for head in heads})
    data: dict[str, Any] = clean(
        {
            "proxrl": __version__,
            "live": live,
            "points": POINTS,
            "confidence": CONFIDENCE,
            "runs": heads,
            "unreadable": unreadable,
            "published": {env: [entry._asdict() for entry in published(env)] for env in envs},
            "about": about_settings(),
        }
    )
    return data


def page_data(folders: Sequence[RunFolder], evaluations: Mapping[Path, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Return all data of the page. `evaluations` has scores by run folder, also for folders that could not be written to."""
    runs = [PageRun(folder, (evaluations or {}).get(folder.path)) for folder in folders]
    data = document(runs)
    by_id = {run.id: run for run in runs}
    data["runs"] = [{**head, **by_id[head["id"]].details()} for head in data["runs"]]
    data["made"] = datetime.now(UTC).timestamp()
    return data


def about_settings() -> dict[str, dict[str, Any]]:
    """Return the group, help text and default of every setting."""
    about = {}
    for spec in dataclasses.fields(Config):
        default = {} if spec.default is dataclasses.MISSING else spec.default
        text = {"group": spec.metadata["group"] or "environment", "help": spec.metadata["help"]}
        about[spec.name] = {**text, "default": "off" if default is None else default}
    return about


def clean(value: Any) -> Any:
    """Return the value without what JSON lacks: NaN, infinity and dates become strings."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
