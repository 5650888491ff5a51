"""The one exception that users see: a single line that says what is wrong and what to do about it."""


class ProxRLError(Exception):
    """Bad input or a broken outside part. The command line prints it as one line and exits non-zero."""

    def __init__(self, message: str) -> None:
        # A space that is part of a message may be written over several lines: numpy breaks its arrays.
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class AgreedError(ProxRLError):
    """One that every rank raises at the same point, so that none waits for another: it is enough if the first tells it."""


class DivergedError(AgreedError):
    """The settings let training run away. Not the environment's fault, so tuning goes on to other settings."""
