"""The one exception that users see: a single line that says what is wrong and what to do about it."""


class ProxRLError(Exception):
    """Bad input or a broken outside part. The command line prints it as one line and exits non-zero."""

    def __init__(self, message: str) -> None:
        # A space that is part of a message may be written over several lines: numpy breaks its arrays.
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class CollectiveError(ProxRLError):
    """One that every rank raises at the same point, so that none waits for another: it is enough if the first tells it."""


class DivergedError(CollectiveError):
    """The settings let training run away. Not the environment's fault, so tuning goes on to other settings."""


def check_at_least(flag: str, value: float | None, minimum: int) -> None:
    """Raise a ProxRLError if the value of a flag is below the minimum; None means that the flag was not given."""
    if value is not None and value < minimum:
        raise ProxRLError(f"{flag} is {value}, but must be at least {minimum}")


def one_line(error: BaseException) -> str:
    """Another library's exception as part of one of our messages: its type and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def describe(error: BaseException) -> str:
    """An exception as one line: our own say all there is to say, others need their type."""
    return str(error) if isinstance(error, ProxRLError) else one_line(error)
