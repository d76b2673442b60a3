"""How long does a step take? Warm up, then time every step apart, and keep every number.

On a device, steps are timed by events on its stream and the host never waits in between, so that measuring changes
nothing; elsewhere by the host's clock. Nothing is averaged away here: summaries are made from `Samples` later.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import torch

from stepscope.bench.workloads.fed import BatchCount, PerStep

_WARMUP_STEPS = 10
_STEPS = 50
_GB = 1e9

Step = Callable[[], torch.Tensor | None]


@dataclass(frozen=True)
class Samples:
    """Raw times of every step of one run on one rank; memory is None where the device keeps no count of it."""

    warmup_ms: tuple[float, ...]
    step_ms: tuple[float, ...]
    #: of the measured steps, empty where the step returns none
    losses: tuple[float, ...]
    #: at the end of each measured step
    memory_allocated_gb: tuple[float, ...] | None = None
    peak_memory_allocated_gb: float | None = None
    peak_memory_reserved_gb: float | None = None
    #: of this rank, the mean over the measured steps; None where its batches do not tell
    samples_per_step: float | None = None
    tokens_per_step: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the samples as they are streamed."""
        return asdict(self)


def measure(
    step: Step,
    *,
    warmup_steps: int = _WARMUP_STEPS,
    steps: int = _STEPS,
    device: torch.device | str,
    fed: BatchCount | None = None,
) -> Samples:
    """Return the time of each of `warmup_steps + steps` calls of `step`, which may return its loss.

    `fed` is what counts the batches of these steps.
    """
    clock = _DeviceClock() if torch.device(device).type == "cuda" else _HostClock()
    early = max(warmup_steps - 1, 0)
    for _ in range(early):
        clock.mark()
        step()
    clock.settle()
    for _ in range(warmup_steps - early):  # fills the queue again: no measured step waits for its first launches
        clock.mark()
        step()
    losses, memory_gb = [], []
    for _ in range(steps):
        clock.mark()
        loss = step()
        if loss is not None:
            losses.append(loss.detach())
        memory_gb.append(clock.memory_gb())
    clock.mark()
    times_ms = clock.times_ms()
    peak_allocated_gb, peak_reserved_gb = clock.peaks_gb()
    per_step = PerStep(None, None) if fed is None or not steps else fed.per_step(slice(-steps, None))
    return Samples(
        warmup_ms=times_ms[:warmup_steps],
        step_ms=times_ms[warmup_steps:],
        losses=tuple(float(loss) for loss in losses),
        memory_allocated_gb=None if None in memory_gb else tuple(memory_gb),  # type: ignore[arg-type]
        peak_memory_allocated_gb=peak_allocated_gb,
        peak_memory_reserved_gb=peak_reserved_gb,
        samples_per_step=per_step.samples,
        tokens_per_step=per_step.tokens,
    )


class _HostClock:
    def __init__(self) -> None:
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        self._marks_ns.append(perf_counter_ns())

    def settle(self) -> None:
        """Do nothing: there is no queue to wait for."""

    def times_ms(self) -> tuple[float, ...]:
        return tuple((after - before) / 1e6 for before, after in pairwise(self._marks_ns))

    def memory_gb(self) -> float | None:
        return None

    def peaks_gb(self) -> tuple[float | None, float | None]:
        return None, None


class _DeviceClock(_HostClock):
    def __init__(self) -> None:
        super().__init__()
        self._events: list[Any] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def settle(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def times_ms(self) -> tuple[float, ...]:
        torch.cuda.synchronize()
        return tuple(before.elapsed_time(after) for before, after in pairwise(self._events))

    def memory_gb(self) -> float | None:
        return torch.cuda.memory_allocated() / _GB

    def peaks_gb(self) -> tuple[float | None, float | None]:
        return torch.cuda.max_memory_allocated() / _GB, torch.cuda.max_memory_reserved() / _GB
