"""Here so that pytest puts this folder on the path: tests of every subfolder import `harness`."""

import signal

# A shell starts background jobs with Ctrl-C ignored, and processes inherit that: the tests of signals need it to arrive.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
