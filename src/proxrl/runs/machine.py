"""What a run was computed on: cheap facts, and nothing that would import torch."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

CPU_INFO = Path("/proc/cpuinfo")


def machine_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_gb"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    # Only a process that computes on a GPU has its driver at work, and it is the one that can name it.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def processor_name() -> str:
    """The model, where the system tells it; Python alone knows no more than the architecture on Linux."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()
