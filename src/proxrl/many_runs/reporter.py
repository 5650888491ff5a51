"""Reports the progress of a run to the process that started it."""

import threading
import time
from multiprocessing.connection import Connection

import torch

from proxrl.callback import Callback
from proxrl.envs.registry import find_family
from proxrl.many_runs.worker import RunMessage, RunProgress, RunStarted
from proxrl.session import Session

REPORT_SECONDS = 0.1


class RunReporter(Callback):
    """Reports the progress of a run to the process that started it, which may ask it to stop."""

    def __init__(self, pipe: Connection, stop: threading.Event) -> None:
        self._pipe, self._stop = pipe, stop
        self._reported_at = 0.0

    def on_start(self, session: Session) -> None:
        self._send(session, RunStarted(cores_of(session)))

    def on_iteration(self, session: Session, metrics: dict[str, float]) -> None:
        if self._stop.is_set():
            session.request_stop()
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            scores = session.mean_return, session.success_rate
            self._send(session, RunProgress(session.step, *scores, metrics["charts/SPS"]))

    def _send(self, session: Session, message: RunMessage) -> None:
        try:
            self._pipe.send(message)
        except OSError:  # nobody is left to report to: save and end
            session.request_stop()


def cores_of(session: Session) -> int:
    """Return how many cores a run keeps busy: those of its network or those of its environments, whichever are more."""
    config, cores = session.config, session.world.cores
    if torch.device(config.device).type != "cpu":
        return cores  # runs on the same GPU would slow each other down
    if config.vector == "workers":
        environments = min(config.num_workers or cores, config.num_envs)
    elif config.vector == "envpool" or (config.vector == "native" and find_family(config.env).name == "atari"):
        environments = min(cores, config.num_envs)  # the threads of a C++ pool
    else:
        environments = 1
    return max(torch.get_num_threads(), environments)
