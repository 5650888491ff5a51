"""TensorBoard events, made of TensorBoard's own messages.

TensorBoard's EventFileWriter is not used. It starts a thread, which prints a traceback when the disk is full and does not survive
a fork, and it imports all of TensorFlow if that is installed.
"""

import contextlib
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from proxrl.common.files import one_line_errors
from proxrl.errors import ProxRLError
from proxrl.log.records import write_record

# Most of the time goes into a record's checksum. Writing records in batches takes a third of the time of writing each at once.
WRITE_SECONDS = 2.0


# The columns of TensorBoard's HParams page, next to the settings. Other metrics would make the table too wide.
COMPARED = ("charts/episodic_return", "charts/success_rate", "eval/episodic_return", "eval/success_rate", "charts/SPS")


class TensorBoardLogger:
    """Writes one event with all scalars per call, and at the start the `settings` of the run, for TensorBoard's HParams page.

    After a resume at `resume_step`, TensorBoard hides the points of earlier sessions beyond it; None hides all of them.
    """

    def __init__(self, folder: Path, resume_step: int | None = None, settings: Mapping[str, Any] | None = None) -> None:
        # Imported here, so that only runs that log to TensorBoard wait for it.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._folder, self._event = folder, Event
        # TensorBoard reads files in the order of their names; the fraction sorts sessions that start within one second.
        path = folder / f"events.out.tfevents.{time.time():.6f}.{platform.node()}.{os.getpid()}"
        with one_line_errors("write TensorBoard events to", folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "xb")
        # A session start makes TensorBoard discard the points at or after its step.
        first_step = 0 if resume_step is None else resume_step + 1
        opening = (
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START)),
        )
        summaries = (Event(wall_time=time.time(), summary=summary) for summary in _hyperparameters(folder, settings or {}))
        self._pending = [event.SerializeToString() for event in (*opening, *summaries)]
        self._write()

    def log(self, step: int, metrics: dict[str, float]) -> None:
        event = self._event(wall_time=time.time(), step=step)
        for name, value in metrics.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._pending.append(event.SerializeToString())
        if time.monotonic() - self._written_at >= WRITE_SECONDS:
            self._write()

    def log_video(self, step: int, path: Path) -> None:
        """Log the video as a GIF, since TensorBoard shows images but not videos."""
        from proxrl.common.video import preview

        gif, width, height = preview(path)
        event = self._event(wall_time=time.time(), step=step)
        image = event.summary.value.add(tag="videos/episode").image
        image.height, image.width, image.colorspace, image.encoded_image_string = height, width, 3, gif
        self._pending.append(event.SerializeToString())

    def close(self) -> None:
        """Write what is pending. Errors are ignored: they would hide why the run ended, and metrics.jsonl has the numbers too."""
        with contextlib.suppress(ProxRLError):
            self._write()
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self) -> None:
        events, self._pending = self._pending, []
        self._written_at = time.monotonic()
        with one_line_errors("write TensorBoard events to", self._folder):
            for event in events:
                write_record(self._file, event)
            self._file.flush()


def _hyperparameters(folder: Path, settings: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the summaries from which TensorBoard's HParams page makes a row for this run."""
    if not settings:
        return
    # The plugin has constants and functions for the values below, but importing them imports most of TensorBoard.
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

    metrics = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in COMPARED]
    start = plugin_data_pb2.SessionStartInfo(group_name=str(folder), start_time_secs=time.time())
    names = []
    for name, value in settings.items():
        cell = start.hparams[name]
        # bool before int: True is also an int.
        if isinstance(value, bool):
            cell.bool_value, kind = value, api_pb2.DATA_TYPE_BOOL
        elif isinstance(value, int | float):
            cell.number_value, kind = value, api_pb2.DATA_TYPE_FLOAT64
        else:
            cell.string_value, kind = "off" if value is None else str(value), api_pb2.DATA_TYPE_STRING
        names.append(api_pb2.HParamInfo(name=name, type=kind))
    experiment = api_pb2.Experiment(hparam_infos=names, metric_infos=metrics)
    for tag, content in (
        ("_hparams_/experiment", {"experiment": experiment}),
        ("_hparams_/session_start_info", {"session_start_info": start}),
    ):
        data = plugin_data_pb2.HParamsPluginData(version=0, **content).SerializeToString()
        plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data)
        yield Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
