"""What did one trial leave? Its time per step after the warm-up, and what it computed.

    step = (end of the last step - end of the warm-up) / steps        on the rank that took longest

The mean, because what recurs in some steps only (a loader that starts again) is paid for too. On a GPU by the device's
own times, since the host runs ahead of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import json_object_in, rank_file
from stepscope.contract.tuning import TRIAL
from stepscope.dataclass import dataclass
from stepscope.run.step_log import MISSING, StepLog, step_logs
from stepscope.units import NS_PER_MS

MIN_STEPS = 5
"""measured, below which a trial says nothing"""


@dataclass(frozen=True)
class Trial:
    """One run of the job; without a step time the reason is there."""

    step_ms: float | None
    steps: int = 0
    """measured, on the rank with the fewest"""
    losses: tuple[float | None, ...] = ()
    parameters: tuple[float, float] | None = None
    """sum, and sum of sizes"""
    took: tuple[str, ...] = ()
    """settings that changed anything in the job"""
    failed: str | None = None


def trial_in(folder: Path | None, *, warmup: int, ended: str | None = None) -> Trial:
    """Return what a trial left in its run folder; `ended` says why it did not end as it should."""
    logs = step_logs(folder) if folder is not None else ()
    if ended is not None or folder is None or not logs:
        return Trial(None, failed=ended or "no step of it was recorded")
    times = [_mean_ns(log, warmup) for log in logs]
    steps = min(count for _, count in times)
    if steps < MIN_STEPS:
        return Trial(None, steps, failed=f"only {steps} steps after the first {warmup} were recorded")
    noted = json_object_in(folder / rank_file(logs[0].rank, TRIAL))
    return Trial(
        max(ns for ns, _ in times) / NS_PER_MS,
        steps,
        losses=_losses(noted.get("losses")),
        parameters=_sums(noted.get("parameters")),
        took=tuple(name for name in noted.get("took") or () if isinstance(name, str)),
    )


def _mean_ns(log: StepLog, warmup: int) -> tuple[float, int]:
    """Return the mean step of a rank and how many there are, 0 of them without any."""
    kept = (log.step >= warmup) & ~log.profiled
    device = log.device_ns[kept]
    times = device if len(device) and (device != MISSING).all() else log.dur_ns[kept]
    return (float(times.mean()), len(times)) if len(times) else (0.0, 0)


def _losses(found: Any) -> tuple[float | None, ...]:
    return tuple(_number(one) for one in found) if isinstance(found, list) else ()


def _sums(found: Any) -> tuple[float, float] | None:
    if not isinstance(found, Mapping):
        return None
    total, size = _number(found.get("sum")), _number(found.get("size"))
    return None if total is None or size is None else (total, size)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
