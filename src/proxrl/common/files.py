"""Files that are whole or not there, and locks on folders."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from proxrl.errors import ProxRLError

# Filesystems without locks: two runs in one folder are then the user's own risk, which beats not running at all.
NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
LOCK_IS_TAKEN = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # the last two are how Windows says it


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to the path given: it takes the place of `path` whole, even if the power fails, or not at all after an error."""
    if path.exists() and not path.is_file():  # a device or a pipe would become a plain file
        raise FileExistsError(errno.EEXIST, "it is not a file")
    # The process id keeps two writers from sharing a temporary file; what a kill leaves behind, `RunFolder.create` removes.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    # The rename itself lasts only once the folder is on disk; Windows and some network filesystems can't sync a folder.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def one_line_errors(action: str, path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one line."""
    try:
        yield
    except OSError as error:
        raise ProxRLError(f"can't {action} {path}: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Refuse a place where nothing can be written, before anything is computed for it."""
    if not path.parent.is_dir():
        raise ProxRLError(f"can't write {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ProxRLError(f"can't write {path}: it is not a file")


def lives(pid: int) -> bool:
    """Whether there is such a process here. Windows has no way to ask without harm, so there it always may."""
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
    """The lock is held until the file is closed or the process ends; `busy` says what the process that has it does."""
    file = open(path, "a+b")
    try:
        _lock_patiently(file)
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
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
        # Windows forbids reading a locked byte, so the lock lies far behind the process id.
        file.seek(1 << 20)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)

else:
    import fcntl

    def _lock_or_raise(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_patiently(file: IO[bytes]) -> None:
    """Whoever asks whether a run is locked holds the lock for an instant."""
    for _ in range(4):
        try:
            return _lock_or_raise(file)
        except OSError as error:
            if error.errno not in LOCK_IS_TAKEN:
                raise
            time.sleep(0.05)
    return _lock_or_raise(file)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock; for this it takes the lock for an instant."""
    try:
        # Reading is enough for a lock, but on Windows; and others' files can be read only.
        file = open(path, "r+b" if sys.platform == "win32" else "rb")
    except FileNotFoundError:
        return False
    except OSError:
        return True  # who can't look must believe what is said of it
    with file:
        try:
            _lock_or_raise(file)
        except OSError as error:
            return error.errno in LOCK_IS_TAKEN
    return False
