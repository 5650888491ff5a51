"""Files that are replaced atomically, and lock files."""

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from proxrl.errors import ProxRLError

# Raised by filesystems without locks. Running without a lock is better than not running at all.
LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
LOCK_IS_TAKEN = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # the last two are from Windows


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` at the end, or is removed after an error.

    Even after a power failure, `path` has either its old or its new content.
    """
    if path.exists() and not path.is_file():  # replacing a device or a pipe would turn it into a plain file
        raise FileExistsError(errno.EEXIST, "it is not a file")
    # The process id keeps two writers apart. `RunFolder.create` removes the files of processes that were killed.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # somebody else's folder may contain a link of this name, which would be written through
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    # The rename is durable only after the folder is synced, which Windows and some network filesystems can't do.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_regular(path: Path, most_bytes: int = 64_000_000) -> bytes:
    """Return the content of a file. Raises an OSError for a device or pipe, which could be read forever, and for a huge file."""
    with open(path, "rb", opener=_opened_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if status.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, and at most {most_bytes:,} are expected")
        return file.read()


def _opened_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextlib.contextmanager
def one_line_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into a one-line `ProxRLError`."""
    try:
        yield
    except OSError as error:
        raise ProxRLError(f"can't {action} {path}: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Raise a `ProxRLError` if `path` can't be a file, before anything is computed for it."""
    if not path.parent.is_dir():
        raise ProxRLError(f"can't write {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ProxRLError(f"can't write {path}: it is not a file")


def process_exists(pid: int) -> bool:
    """Return whether a process with this id may be running on this host: always True on Windows, which has no safe way to ask."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def acquire_lock(path: Path, busy: str) -> IO[bytes]:
    """Lock a file until it is closed or the process ends, and write the process id to it.

    Raises a `ProxRLError` if another process holds the lock; `busy` completes its message "process 123 ...".
    """
    file = open(path, "a+b")
    try:
        _lock_with_retries(file)
    except OSError as error:
        if error.errno not in LOCKS_UNSUPPORTED:
            file.seek(0)
            owner = file.read(20).decode(errors="replace").strip()
            file.close()
            if error.errno not in LOCK_IS_TAKEN:
                raise
            raise ProxRLError(f"process {owner or '(unknown)'} {busy}") from error
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


if sys.platform == "win32":
    import msvcrt

    def _lock_or_raise(file: IO[bytes]) -> None:
        # Windows does not allow reading a locked byte, so lock one far behind the process id.
        file.seek(1 << 20)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)

else:
    import fcntl

    def _lock_or_raise(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_with_retries(file: IO[bytes]) -> None:
    """Try for a moment, since `is_locked` in another process briefly takes the lock."""
    for _ in range(4):
        try:
            return _lock_or_raise(file)
        except OSError as error:
            if error.errno not in LOCK_IS_TAKEN:
                raise
            time.sleep(0.05)
    return _lock_or_raise(file)


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock, by briefly taking it."""
    try:
        # Except on Windows, read access is enough for a lock, and files of other users may be read-only.
        file = open(path, "r+b" if sys.platform == "win32" else "rb")
    except FileNotFoundError:
        return False
    except OSError:
        return True  # can't check, so assume it is locked
    with file:
        try:
            _lock_or_raise(file)
        except OSError as error:
            return error.errno in LOCK_IS_TAKEN
    return False
