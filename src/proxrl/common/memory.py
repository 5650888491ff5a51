"""How much memory this process can use: that of the machine, or less if a container or a limit of the shell says so."""

import os
from pathlib import Path
from typing import NamedTuple

MEMORY_INFO, CGROUPS, OWN_CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class Memory(NamedTuple):
    """Memory in bytes."""

    total: int
    available: int  # at the moment


def usable_memory() -> Memory | None:
    """Return what this process can use, with swap space; None if the system does not tell."""
    found = [memory for memory in (_of_machine(), _of_cgroup(), _of_limit()) if memory is not None]
    return Memory(min(memory.total for memory in found), min(memory.available for memory in found)) if found else None


def in_words(size: float) -> str:
    """Return a number of bytes in its largest unit, such as 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024 or unit == "PiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if size >= 100 or unit == "bytes" else f"{size:.1f} {unit}"


def _of_machine() -> Memory | None:
    try:
        lines = (line.split() for line in MEMORY_INFO.read_text().splitlines())
        sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
        return Memory(sizes["MemTotal"] + sizes["SwapTotal"], sizes["MemAvailable"] + sizes["SwapFree"])
    except (OSError, ValueError, KeyError):
        pass
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:  # macOS
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Memory(total, total)
    return None


def _of_cgroup() -> Memory | None:
    """Return the tightest limit of the control groups that this process is in, as containers and batch systems set them."""
    limits = []
    for limit_path, used_path in _cgroup_files():
        try:
            limit, used = int(limit_path.read_text()), int(used_path.read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        limits.append(Memory(limit, max(0, limit - used)))
    return min(limits, default=None)


def _cgroup_files() -> list[tuple[Path, Path]]:
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        root = CGROUPS if not controllers else CGROUPS / "memory"
        names = ("memory.max", "memory.current") if not controllers else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = root / group.lstrip("/")
        # In a container the path may be that of the host, which is not visible, but its root is.
        folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
        found += [(parent / names[0], parent / names[1]) for parent in folders]
    return found


def _of_limit() -> Memory | None:
    """Return the limit of address space that `ulimit -v` sets."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else Memory(soft, soft)
