"""Own times of ranks from step logs alone: no profiler, while the job runs. Which ranks are late, `contract.lateness`
says.

With NCCL ranks wait on the device: while the job runs their mean over the last steps is known, after it the newest
collectives, matched by their number. Each ends on all ranks at once, and takes the last to arrive the least time.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.training_step import OUTSIDE, TrainingStep, training_step
from stepscope.contract.lateness import (
    DEFAULT_SLOWDOWN,
    DEFAULT_WINDOW_STEPS,
    LateRank,
    StepTimes,
    late_ranks as late_of,
    lateness,
    own_times,
)
from stepscope.contract.step_line import (
    BACKWARD,
    DATA_LOADING,
    FIRST_STEPS,
    FORWARD,
    GRADIENT_SYNC,
    HOST_WAIT,
    OPTIMIZER,
)
from stepscope.run.side_files import CollectiveTimes, StepLog
from stepscope.stats.robust import median

Floats = npt.NDArray[np.float64]
Times = Mapping[int, CollectiveTimes]

DEVICE_WAIT = "collectives.device_ns"
_MAX_WAIT_NS = 2.0**63
# what recurs is known by its region: no difference between equal ranks is mistaken for it
_RECURRING_SLOWDOWN = 1.05


def late_ranks(
    logs: Sequence[StepLog],
    times: Times | None = None,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    slowdown: float = DEFAULT_SLOWDOWN,
) -> list[LateRank]:
    """Return the ranks that are late over the last steps that all ranks have, the latest first."""
    return late_of(known_lateness(logs, times, window_steps=window_steps, slowdown=slowdown))


def known_lateness(
    logs: Sequence[StepLog],
    times: Times | None = None,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    slowdown: float = DEFAULT_SLOWDOWN,
) -> list[LateRank]:
    """Return how late each rank is, by rank: by its own times, or by what recurs in some of its steps."""
    judged = {one.rank: one for one in log_lateness(logs, times, window_steps=window_steps, slowdown=slowdown)}
    recurs = {one.rank: one for one in recurring_lateness(logs, training_step(logs)) if one.is_late}
    found = {rank: judged.get(rank) or recurs[rank] for rank in sorted(judged.keys() | recurs.keys())}
    return [one if one.is_late else recurs.get(rank, one) for rank, one in found.items()]


def recurring_lateness(logs: Sequence[StepLog], training: TrainingStep | None) -> list[LateRank]:
    """Return how late each rank is by what recurs in some steps, and the others wait for.

    Time outside every region may be such a wait, unless waits are known.
    """
    if training is None or len(training.recurring.ranks) < 2:
        return []
    r, waits_known = training.recurring, has_waits(logs, HOST_WAIT)
    counts = [waits_known or cause != OUTSIDE for cause in r.causes]
    own = training.ordinary_ns + r.scale * r.excess_ns[counts].sum(axis=0)
    return lateness(dict(zip(r.ranks, own.tolist(), strict=True)), slowdown=_RECURRING_SLOWDOWN)


def log_lateness(
    logs: Sequence[StepLog],
    times: Times | None = None,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    slowdown: float = DEFAULT_SLOWDOWN,
) -> list[LateRank]:
    """Return how late each rank is by its own times, by rank; empty where they are unknown."""
    if times and not has_waits(logs, HOST_WAIT):
        by_collectives = _own_by_collectives(logs, times, window_steps)
        if by_collectives is not None:
            return lateness(by_collectives, slowdown=slowdown)
    known = own_times({log.rank: step_times(log) for log in logs}, window_steps=window_steps) if logs else None
    return [] if known is None else lateness(known[1], slowdown=slowdown)


def step_times(log: StepLog) -> StepTimes:
    """Return the columns of a log that own times need; the first ones of a process do not count."""
    host, device = (np.where(np.abs(x) < _MAX_WAIT_NS, x, np.nan) for x in map(log.column, (HOST_WAIT, DEVICE_WAIT)))
    counts = log.unprofiled & (log.step >= FIRST_STEPS)
    return StepTimes(log.step.tolist(), log.dur_ns.tolist(), host.tolist(), device.tolist(), counts.tolist())


def has_waits(logs: Sequence[StepLog], *places: str) -> bool:
    """Return whether a log shows how long its rank waited for others."""
    return any(not np.isnan(log.column(place)).all() for log in logs for place in places)


def shows_late_ranks(logs: Sequence[StepLog], times: Times | None, description: Mapping[str, Any]) -> bool:
    """Return whether a late rank would show: with NCCL the others wait for it on the device."""
    on_host = len(logs) < 2 or "nccl" not in str(description.get("backend"))
    return on_host or has_waits(logs, HOST_WAIT, DEVICE_WAIT) or _own_by_collectives(logs, times or {}, 1) is not None


def _own_by_collectives(logs: Sequence[StepLog], times: Times, window_steps: int) -> dict[int, list[float]] | None:
    """Return own times by rank from the newest collectives; None where the ranks have too few in common.

    A step is as many collectives of the group as a step has of them.
    """
    mine = [times.get(log.rank) for log in logs]
    found = [one for one in mine if one is not None]
    if len(found) < len(logs) or len({one.group for one in found}) > 1:
        return None
    each = max(1, round(min(one.count / max(len(log), 1) for one, log in zip(found, logs, strict=True))))
    numbers = sorted(reduce(and_, (one.ns_by_number.keys() for one in found)))[-each * window_steps :]
    steps = len(numbers) // each
    if not steps:
        return None
    took = np.array([[one.ns_by_number[k] for k in numbers[-each * steps :]] for one in found], float)
    took -= took.min(axis=0)  # the transfer
    step_ns = np.array([[median(log.dur_ns[log.unprofiled])] if log.unprofiled.any() else [np.nan] for log in logs])
    own = step_ns - took.reshape(len(logs), steps, each).sum(axis=2)
    return {log.rank: row for log, row in zip(logs, own.tolist(), strict=True)}


# What do the regions of a step take, by the step logs alone: forward, backward, data loading, and what the job names?
#
# Medians over the steps without the profiler. Where the wait for gradients was separated from the backward pass in
# some steps only, those are the steps that count.

_PREFIX, _SUFFIX = "regions.", ".ns"
_FIRST = (DATA_LOADING, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER)


def region_names(logs: Sequence[StepLog]) -> list[str]:
    """Return the regions that any rank has, in the order of a step."""
    paths = {path for log in logs for path in log.numbers if path.startswith(_PREFIX) and path.endswith(_SUFFIX)}
    names = {path.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in paths}
    return [*(n for n in _FIRST if n in names), *sorted(names.difference(_FIRST))]


def is_rare(logs: Sequence[StepLog], name: str) -> bool:
    """Return whether a region is in few of the steps, so that its median cost means nothing."""
    return name not in _FIRST and all(np.isnan(region_ns(log, name)).mean() > 0.5 for log in logs)


def region_ns(log: StepLog, name: str) -> Floats:
    """Return what a region took in each step, NaN where it was not seen."""
    return log.column(f"{_PREFIX}{name}{_SUFFIX}")


def median_ns(log: StepLog, values_ns: Floats) -> float | None:
    """Return the median over the steps that count, None where none has a value."""
    known = values_ns[log.unprofiled & _split(log) & ~np.isnan(values_ns)]
    return median(known) if len(known) else None


def _split(log: StepLog) -> npt.NDArray[np.bool_]:
    known = ~np.isnan(log.column(HOST_WAIT))
    return known if known.any() else np.ones(len(log), bool)
