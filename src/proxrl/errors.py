"""The one exception that users see: a single line that says what is wrong and what to do about it."""


class ProxRLError(Exception):
    """Bad input or a broken outside part. The command line prints it as one line and exits non-zero."""
