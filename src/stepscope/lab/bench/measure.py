"""Measure or record the steps of a training, and count the samples and tokens of its batches.

Every step is timed after a warm-up: on a device by events on its stream, so that the host never waits in between and
measuring changes nothing; elsewhere by the host's clock. Nothing is averaged here: `results` summarises the samples.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from stepscope.errors import UsageError
from stepscope.record.batch_contents import BatchContents, contents_of
from stepscope.side_file import refuse_output

_TRACE_WARMUP_STEPS = 3
_MAX = ("peak_memory_allocated_gb", "peak_memory_reserved_gb", "peak_host_bytes")
_SUM = ("samples_per_step", "tokens_per_step", "flops_per_step")

# samples and tokens; None where a batch does not show them
Counts = tuple[float | None, float | None]


@dataclass
class BatchCount:
    """Counts batches, step by step."""

    steps: list[Counts] = field(default_factory=list)
    _batches: list[BatchContents] = field(default_factory=list)

    def counted(self, batch: Any) -> Any:
        """Return the batch, counted in the current step."""
        self._batches.append(contents_of(batch))
        return batch

    def end_step(self) -> None:
        """Close the count of one step."""
        self.steps.append((_total([b[0] for b in self._batches]), _total([b[1] for b in self._batches])))
        self._batches = []

    def forget_batches(self) -> None:
        """Drop batches that no step used."""
        self._batches = []

    def per_step(self, steps: Sequence[int]) -> Counts:
        """Return the means over these steps."""
        samples, tokens = (_total([self.steps[i][kind] for i in steps]) for kind in (0, 1))
        return samples and samples / len(steps), tokens and tokens / len(steps)


def _total(counts: Sequence[float | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def measure(
    step: Callable[[], torch.Tensor | None], *, warmup_steps: int = 10, steps: int = 50, device: torch.device | str,
    fed: BatchCount | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the raw samples of `warmup_steps + steps` calls of `step`, which may return its loss.

    `fed` counts the batches of these steps. Memory is None where the device keeps no count of it.
    """
    device = torch.device(device)
    cuda = device.type == "cuda"
    marks, losses, memory_gb = [], [], []
    for number in range(-warmup_steps, steps):
        if cuda and number == -bool(warmup_steps):
            # The last warm-up step fills the queue again: no measured step waits for its first launches.
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        marks.append(mark(device))
        loss = step()
        if number >= 0:
            losses += [] if loss is None else [loss.detach()]
            memory_gb += [torch.cuda.memory_allocated() / 1e9] if cuda else []
    marks.append(mark(device))
    times_ms = [elapsed_ms(a, b) for a, b in pairwise(marks)]
    samples, tokens = (None, None) if fed is None or not steps else fed.per_step(range(-steps, 0))
    return {
        "warmup_ms": times_ms[:warmup_steps],
        "step_ms": times_ms[warmup_steps:],
        "losses": [float(loss) for loss in losses],
        "memory_allocated_gb": memory_gb if cuda else None,
        "peak_memory_allocated_gb": torch.cuda.max_memory_allocated() / 1e9 if cuda else None,
        "peak_memory_reserved_gb": torch.cuda.max_memory_reserved() / 1e9 if cuda else None,
        "samples_per_step": samples,
        "tokens_per_step": tokens,
    }


def mark(device: torch.device) -> Any:
    """Return a moment on a device's stream, or on the host, for `elapsed_ms`."""
    if device.type != "cuda":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_ms(begin: Any, end: Any) -> float:
    """Return the time between two marks; waits for the device to pass the second."""
    if isinstance(begin, float):
        return 1e3 * (end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end))


def job_samples(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one record of all ranks: the job's samples, the fullest rank's memory, the median rank's time."""

    def over(name: str, function: Callable[[Sequence[float]], float]) -> float | None:
        found: list[Any] = [rank.get(name) for rank in ranks]
        return None if None in found else function(found)

    def by_step(records: Sequence[Any], name: str, function: Callable[[Sequence[float]], float]) -> list[float] | None:
        found = [record[name] for record in records]
        return None if None in found else [function(values) for values in zip(*found, strict=True)]

    def check(name: str) -> dict[str, Any] | None:
        found: list[Any] = [rank.get(name) for rank in ranks]
        if None in found:
            return None
        first_ms = max(one["first_step_ms"] for one in found)
        return {**found[0], "losses": by_step(found, "losses", fmean), "first_step_ms": first_ms}

    return {
        **ranks[0],
        **{name: by_step(ranks, name, median) for name in ("step_ms", "warmup_ms")},
        **{name: over(name, max) for name in _MAX},
        **{name: over(name, sum) for name in _SUM},
        "memory_allocated_gb": by_step(ranks, "memory_allocated_gb", max),
        "losses": by_step(ranks, "losses", fmean),
        "check": check("check"),
        "reference": check("reference"),
    }


def record_steps(
    begin: Callable[[Callable[[str], AbstractContextManager[Any]]], Callable[[], Any]], *, path: Path, steps: int,
    device: torch.device, record_shapes: bool = False,
) -> None:  # fmt: skip
    """Write the trace of `steps` calls of the step that `begin(mark)` makes, after a few that warm up."""
    step = begin(record_function)
    window = schedule(wait=0, warmup=_TRACE_WARMUP_STEPS, active=steps, repeat=1)
    with profile(
        activities=activities(device),
        schedule=window,
        record_shapes=record_shapes,
        on_trace_ready=lambda p: export_trace(p, path),
    ) as p:
        for _ in range(_TRACE_WARMUP_STEPS + steps):
            step()
            wait_for_device(device)
            p.step()


def activities(device: torch.device) -> list[Any]:
    """Return what the profiler records on a device."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def wait_for_device(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def export_trace(profiler: Any, path: Path) -> None:
    """Write the trace and check its end: the profiler reports no error on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_output(path)
    profiler.export_chrome_trace(str(path))
    if not path.exists() or not path.read_bytes()[-200:].rstrip().endswith(b"}"):
        raise UsageError(f"the trace {path} could not be written whole; is the disk full?")
