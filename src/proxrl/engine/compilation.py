"""Report when torch compiles: the first iterations of `--compile` take minutes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from proxrl.log.activity import Activity


@contextmanager
def reporting_compilation(compiled: bool, activity: Activity) -> Iterator[None]:
    """Say "compiling" while torch does. It compiles whenever it meets a new network, shape or mode, so only torch knows when."""
    if not compiled:
        yield
        return
    compiling = ExitStack()

    def start(_: Any) -> None:
        compiling.enter_context(activity.during("compiling"))

    def end(_: Any) -> None:
        compiling.close()

    try:
        from torch._dynamo.callback import callback_handler
    except ImportError:  # it is no documented interface of torch
        yield
        return
    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)
        compiling.close()
