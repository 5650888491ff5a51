"""The exception that users see: a single line that says what is wrong and what to do about it."""

from collections.abc import Iterator
from contextlib import contextmanager


class ProxRLError(Exception):
    """Bad input, or a failure outside ProxRL. The command line prints it as one line and exits with a non-zero code."""

    def __init__(self, message: str) -> None:
        # numpy prints the arrays of a space over several lines.
        super().__init__(printable(" ".join(line.strip() for line in message.splitlines())))


class CollectiveError(ProxRLError):
    """An error that every rank raises at the same point, so that no rank waits for another and rank 0 alone reports it."""


class DivergedError(CollectiveError):
    """Training diverged under these settings. Tuning goes on with other settings, since the environment is not at fault."""


def printable(text: str) -> str:
    """Return a text with escapes for what a terminal would act on or not show, since names in run folders may be anybody's."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text)


def check_at_least(flag: str, value: float | None, minimum: int) -> None:
    """Raise a ProxRLError if the value of a flag is below the minimum; None means that the flag was not given."""
    if value is not None and value < minimum:
        raise ProxRLError(f"{flag} is {value}, but must be at least {minimum}")


def one_line(error: BaseException) -> str:
    """Return another library's exception as part of one of our messages: its type and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def describe(error: BaseException) -> str:
    """Return an exception as one line: the message of a ProxRLError, the type and first line of any other."""
    return str(error) if isinstance(error, ProxRLError) else one_line(error)


@contextmanager
def attribute_errors(part: object, method: str) -> Iterator[None]:
    """Name the callback or logger in an error that it raises, since it may be the user's."""
    try:
        yield
    except ProxRLError:
        raise
    except Exception as error:
        raise ProxRLError(f"{type(part).__name__}.{method} failed: {one_line(error)} (--debug shows where)") from error
