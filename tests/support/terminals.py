"""Code that runs on a pseudo-terminal."""

import os
import re
import subprocess
import sys

import pytest

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_on_terminal(code: str, columns: int = 80, **environment: str) -> str:
    """Run Python code in a process on a terminal of this width, and return everything that the terminal receives."""
    pty = pytest.importorskip("pty", reason="pseudo-terminals are POSIX")
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # raised on Linux when the other end is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(ours)
    assert child.wait() == 0, received.decode()
    return received.decode()


def run_in_pipe(code: str, **environment: str) -> str:
    """Run Python code in a process, and return what it writes to stdout and stderr."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


def screen_lines(received: str) -> list[str]:
    """Return what is left on a terminal: the cursor moves up and lines are erased, as rich does it."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", received):
        if token == "\n":
            row += 1
            lines += [""] if row == len(lines) else []
        elif token.endswith("A") and token[0] == "\x1b":
            row = max(0, row - int(token[2:-1] or 1))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token[0] not in "\r\x1b":
            lines[row] += token
    return [line for line in lines if line]
