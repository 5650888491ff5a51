"""The versions, machine and git commit that a run was computed with. Nothing here imports torch."""

import contextlib
import functools
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def circumstances() -> dict[str, Any]:
    """Return versions, machine and git commit, which do not change while the process lives."""
    versions = {"python": platform.python_version()}
    for package in ("proxrl", "torch", "numpy", "gymnasium"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {"versions": versions, "machine": machine_facts(), "git": git_state()}


def machine_facts() -> dict[str, Any]:
    """Return operating system, processor, memory and GPU."""
    facts: dict[str, Any] = {
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_gb"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    # Only a process that computes on a GPU has initialized its driver, and asking for the name would initialize it.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def processor_name() -> str:
    """Return the processor model if the system reports it; on Linux, Python alone knows only the architecture."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def git_state() -> dict[str, Any] | None:
    """Return the commit of the current directory, or None if it is not a git checkout or git does not answer quickly."""

    def git(*words: str) -> str:
        # Without optional locks git does not write the index, so it can't disturb a git command of the user.
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        process = subprocess.run(["git", *words], capture_output=True, text=True, timeout=2, check=True, env=environment)
        return process.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
