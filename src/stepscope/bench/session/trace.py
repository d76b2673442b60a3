"""A few steps of a benchmark under the profiler, as a trace file that `stepscope report` reads."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from stepscope.errors import UsageError
from stepscope.output_path import refuse_output

_WARMUP_STEPS = 3

Mark = Callable[[str], AbstractContextManager[Any]]


def record_steps(begin: Callable[[Mark], Callable[[], Any]], *, path: Path, steps: int, device: torch.device) -> Path:
    """Return the trace of `steps` calls of the step that `begin(mark)` makes, after a few that warm up."""
    step = begin(record_function)
    window = schedule(wait=0, warmup=_WARMUP_STEPS, active=steps, repeat=1)
    with profile(activities=activities(device), schedule=window, on_trace_ready=lambda p: export_trace(p, path)) as p:
        for _ in range(_WARMUP_STEPS + steps):
            step()
            wait_for_device(device)
            p.step()
    return path


def activities(device: torch.device) -> list[Any]:
    """Return what there is to record on a device."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def wait_for_device(device: torch.device) -> None:
    """Wait for the device, so that the window's last step is whole."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def export_trace(profiler: Any, path: Path) -> Path:
    """Return the written trace; the profiler says nothing on a full disk, so its end is read back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_output(path)
    profiler.export_chrome_trace(str(path))
    if not path.exists() or not path.read_bytes()[-200:].rstrip().endswith(b"}"):
        raise UsageError(f"the trace {path} could not be written whole; is the disk full?")
    return path
