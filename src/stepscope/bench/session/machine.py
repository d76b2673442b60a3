"""What is this machine, and what runs on it? The environment that every result carries."""

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device) -> dict[str, Any]:
    """Return hardware and software of this rank; None where it cannot be told."""
    cuda = device.type == "cuda"
    return {
        "host": platform.node(),
        "device": torch.cuda.get_device_name(device) if cuda else _processor(),
        "devices_here": torch.cuda.device_count() if cuda else 0,
        "device_memory_gb": torch.cuda.get_device_properties(device).total_memory / 1e9 if cuda else None,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
