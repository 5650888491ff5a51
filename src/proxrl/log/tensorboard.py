"""TensorBoard events, written with TensorBoard's own record writer and messages.

TensorBoard's EventFileWriter is not used. It starts a thread, which prints a traceback when the disk is full and does not survive
a fork, and it imports all of TensorFlow if that is installed.
"""

import contextlib
import os
import platform
import time
from pathlib import Path

from proxrl.common.files import one_line_errors
from proxrl.errors import ProxRLError

# Most of the time goes into a record's checksum. Writing records in batches takes a third of the time of writing each at once.
WRITE_SECONDS = 2.0


class TensorBoardLogger:
    """Writes one event with all scalars per call.

    After a resume at `resume_step`, TensorBoard hides the points of earlier sessions beyond it; None hides all of them.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        # Imported here, so that only runs that log to TensorBoard wait for it.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder, self._event = folder, Event
        # TensorBoard reads files in the order of their names; the fraction sorts sessions that start within one second.
        path = folder / f"events.out.tfevents.{time.time():.6f}.{platform.node()}.{os.getpid()}"
        with one_line_errors("write TensorBoard events to", folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(open(path, "xb"))
        # A session start makes TensorBoard discard the points at or after its step.
        first_step = 0 if resume_step is None else resume_step + 1
        opening = (
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START)),
        )
        self._pending = [event.SerializeToString() for event in opening]
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
            self._writer.close()

    def _write(self) -> None:
        events, self._pending = self._pending, []
        self._written_at = time.monotonic()
        with one_line_errors("write TensorBoard events to", self._folder):
            for event in events:
                self._writer.write(event)
            self._writer.flush()
