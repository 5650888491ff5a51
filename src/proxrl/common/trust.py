"""Which run folders and files are this user's own. SECURITY.md says what this protects from, and what it does not.

A folder is proved to be one's own by its stamp, of which either half suffices:

- a signature (HMAC) with a random key in the user's state folder, which also holds for copies of the folder;
- where that key is missing, as in a container without a lasting home, or on another host: the inode and the time of change of
  the file `stamp.anchor`. Nobody can choose these for a file that is unpacked from an archive or cloned, and files of other users
  on a shared disk have another owner.

Both hold for one digest of what was trusted, so a change of it invalidates the stamp.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

from proxrl.common.files import read_regular, replacing

STAMP, ANCHOR = "stamp.json", "stamp.anchor"
KEY_BYTES = 32
MOST_BYTES = 1_000_000  # of a stamp, a key or the list of trusted files


def stamp(folder: Path, digest: str) -> None:
    """Declare what `digest` stands for in this folder as one's own. Raises an OSError if the folder can't be written to."""
    key = _key(create=True)
    proofs: dict[str, Any] = {"digest": digest, "anchor": _make_anchor(folder / ANCHOR)}
    if key is not None:
        proofs["signature"] = _sign(key, digest)
    with (
        replacing(folder / STAMP) as temporary,
        open(temporary, "x", encoding="utf-8", opener=_opened_for_others_to_read) as file,
    ):
        file.write(json.dumps(proofs, indent=2) + "\n")


def is_stamped(folder: Path, digest: str) -> bool:
    """Return whether this user has stamped the folder for this digest."""
    try:
        proofs = json.loads(read_regular(folder / STAMP, MOST_BYTES))
        if proofs["digest"] != digest:
            return False
        key, signature = _key(create=False), proofs.get("signature")
        if (
            key is not None
            and isinstance(signature, str)
            and hmac.compare_digest(signature.encode(), _sign(key, digest).encode())
        ):
            return True
        anchor = _anchor_of(folder / ANCHOR)
        return anchor is not None and proofs.get("anchor") == anchor and _is_private(os.lstat(folder / STAMP))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def remember(path: Path, digest: str) -> None:
    """Remember that a file is trusted, in the user's state folder; without such a folder it must be trusted every time."""
    folder = state_folder()
    if folder is None or is_remembered(path, digest) or _key(create=True) is None:
        return
    with contextlib.suppress(OSError), open(folder / "trusted", "a", encoding="utf-8", opener=_opened_privately) as file:
        file.write(_entry(path, digest) + "\n")


def is_remembered(path: Path, digest: str) -> bool:
    """Return whether this file is trusted with this content."""
    folder = state_folder()
    try:
        return folder is not None and _entry(path, digest) in _read_private(folder / "trusted").decode().split()
    except (OSError, ValueError):
        return False


def state_folder() -> Path | None:
    """Return the folder of the key, which may not exist yet, or None if the user has no home."""
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Application Support"
        else:
            given = Path(os.environ.get("XDG_STATE_HOME", ""))
            base = given if given.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "proxrl"


def _entry(path: Path, digest: str) -> str:
    return hashlib.sha256(f"{path.resolve()}\0{digest}".encode(errors="surrogateescape")).hexdigest()


def _sign(key: bytes, digest: str) -> str:
    return hmac.new(key, f"proxrl stamp {digest}".encode(), "sha256").hexdigest()


# --- the key ---------------------------------------------------------------------------------------------------------------


def _key(create: bool) -> bytes | None:
    """Return this user's key, or None if there is none, if it can't be created, or if others could have read it."""
    folder = state_folder()
    if folder is None:
        return None
    path = folder / "key"
    try:
        if create and not path.exists():
            _create_key(path)
        key = bytes.fromhex(_read_private(path).decode())
    except (OSError, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


def _create_key(path: Path) -> None:
    existing = next(parent for parent in path.parents if parent.exists())
    if not _is_mine(os.stat(existing)):  # with sudo, HOME may be another user's, who could not read the key
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".key.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", opener=_opened_privately) as file:
            file.write(secrets.token_hex(KEY_BYTES))
        # Either fails if another process has created the key meanwhile: a key is never replaced.
        with contextlib.suppress(FileExistsError):
            (os.rename if sys.platform == "win32" else os.link)(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _opened_privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _opened_for_others_to_read(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)  # with many a umask, the default lets the group write


def _read_private(path: Path) -> bytes:
    """Return the content of a file that only this user can read and write; raise an OSError for any other file."""
    status = os.stat(path)
    if not _is_mine(status) or (os.name == "posix" and status.st_mode & 0o077):
        raise PermissionError(f"{path} is not private")
    return read_regular(path, MOST_BYTES)


# --- the anchor ------------------------------------------------------------------------------------------------------------


def _make_anchor(path: Path) -> dict[str, int] | None:
    """Create the anchor anew and return what identifies it, or None if this file system can't."""
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8", opener=_opened_for_others_to_read) as file:
        file.write("ProxRL recognizes its own run by this file's inode and time of change; see stamp.json.\n")
    # A file system that derives the time of change from that of modification, which archives can set, is found out by this.
    with contextlib.suppress(OSError):
        os.utime(path, (0, 0))
    return _anchor_of(path)


def _anchor_of(path: Path) -> dict[str, int] | None:
    """Return what identifies an anchor, or None if it proves nothing."""
    # On Windows st_ctime is the time of creation, which archives can set.
    if os.name != "posix":
        return None
    status = os.lstat(path)
    # A second link to a file of this user could have been made by another user.
    if status.st_nlink != 1 or not _is_private(status) or status.st_ctime_ns <= status.st_mtime_ns or status.st_ino == 0:
        return None
    return {"inode": status.st_ino, "changed": status.st_ctime_ns, "owner": status.st_uid}


def _is_private(status: os.stat_result) -> bool:
    """Return whether this is a regular file that only this user can write."""
    return stat.S_ISREG(status.st_mode) and _is_mine(status) and not status.st_mode & 0o022


def _is_mine(status: os.stat_result) -> bool:
    return os.name != "posix" or status.st_uid == os.getuid()
