"""Which ranks are late, from step logs alone: no profiler, while the job runs.

A rank's own time is its step less the time it waited for the others' gradients (region `gradient_sync`): after the
wait all ranks take equally long. Where steps are short the wait is measured in a few of them only, chosen by each rank:
in the others the own time is unknown, not the whole step.

With NCCL ranks wait on the device. Own time is the step less the waits there: while the job runs their mean over
the last steps, after it the newest collectives, matched by their number. Each ends on all ranks at once, and takes the
last to arrive the least time.

Lateness is the centre (`stats/robust.py`) over steps of a rank's own time less the others' median in the same step.
Step times have long tails and are correlated (a busy machine stays busy for a while), so the confidence interval uses
the number of independent steps that the autocorrelation leaves. A rank is late where the whole interval is above zero,
the centre is at least 10 % of the others' own time, and both halves of the steps show it: equal ranks are named in at
most 2 of 100 runs (`test_log_stragglers.py`). With fewer than ten known
steps each of them has to be late as well: a load of two seconds makes one of two equal ranks the later one in most of
them.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import sqrt
from operator import and_
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.contract.live import DEFAULT_SLOWDOWN, DEFAULT_WINDOW_STEPS, NOISE_SHARE
from stepscope.contract.step_line import BACKWARD, DATA_LOADING, FORWARD, GRADIENT_SYNC, OPTIMIZER
from stepscope.records import dataclass
from stepscope.run.side_files import CollectiveTimes, StepLog
from stepscope.stats.robust import Centre, centre, mad_sigma, median, medians_without_each, slow_start, t_quantile

Floats = npt.NDArray[np.float64]

HOST_WAIT, DEVICE_WAIT = "regions.gradient_sync.ns", "collectives.device_ns"
# in which share of runs with equal ranks any may be named late by chance
_FALSE_ALARMS = 0.0125
_CLIP_SIGMAS = 3.0
_MAX_WAIT_NS = 2.0**63


@dataclass(frozen=True)
class LateRank:
    """How late a rank is by the steps without the profiler."""

    rank: int
    #: own time beyond the others' median, per step; negative for a rank that the others are later than
    late_ns: int
    #: lateness against its standard error
    score: float
    #: own time over the mean of the others'
    slowdown: float
    low_ns: int = 0
    #: interval of the lateness
    high_ns: int = 0
    steps_late: int = 0
    num_steps: int = 0
    #: at least two fifths of the lateness are there in each half of the steps: no passing load of the machine
    lasts: bool = True
    own_ns: int = 0
    #: median own time of the rank, and of the others
    others_ns: int = 0

    def is_late(self, slowdown: float = DEFAULT_SLOWDOWN) -> bool:
        enough = self.num_steps >= 10 or self.steps_late == self.num_steps
        return enough and self.low_ns > 0 and self.lasts and self.slowdown >= slowdown


Times = Mapping[int, CollectiveTimes]


def late_ranks(
    logs: Sequence[StepLog],
    times: Times | None = None,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    slowdown: float = DEFAULT_SLOWDOWN,
) -> list[LateRank]:
    """Return the ranks that are late over the last steps that all ranks have, the latest first."""
    found = [late for late in lateness(logs, times, window_steps=window_steps) if late.is_late(slowdown)]
    return sorted(found, key=lambda late: -late.late_ns)


def has_waits(logs: Sequence[StepLog], *places: str) -> bool:
    """Return whether a log shows how long its rank waited for others."""
    return any(not np.isnan(log.column(place)).all() for log in logs for place in places)


def shows_late_ranks(logs: Sequence[StepLog], times: Times | None, description: Mapping[str, Any]) -> bool:
    """Return whether a late rank would show: with NCCL the others wait for it on the device."""
    on_host = len(logs) < 2 or "nccl" not in str(description.get("backend"))
    return on_host or has_waits(logs, HOST_WAIT, DEVICE_WAIT) or _own_by_collectives(logs, times or {}, 1) is not None


def lateness(logs: Sequence[StepLog], times: Times | None = None, *, window_steps: int) -> list[LateRank]:
    """Return how late each rank is with its interval, by rank; empty with too few steps."""
    by_collectives = (
        _own_by_collectives(logs, times, window_steps) if times and not has_waits(logs, HOST_WAIT) else None
    )
    own = by_collectives if by_collectives is not None else own_ns(logs, window_steps=window_steps)
    if own is None or len(own) < 2 or min((~np.isnan(row)).sum() for row in own) < 5:
        return []
    typical = np.nanmedian(own, axis=1)
    # Against the others in the same step, or as they usually are where unknown.
    late = own - medians_without_each(np.where(np.isnan(own), typical[:, None], own))
    of_others = medians_without_each(typical[:, None])[:, 0]
    return [
        _late_rank(log.rank, row[~np.isnan(row)], typical, i, others=float(of_others[i]))
        for i, (log, row) in enumerate(zip(logs, late, strict=True))
    ]


def _late_rank(rank: int, by_step: Floats, typical: Floats, i: int, *, others: float) -> LateRank:
    middle, tells = _sharper(by_step), max(independent_samples(by_step), 2.0)
    late = middle.value
    error = max(middle.error * sqrt(len(by_step) / tells), NOISE_SHARE * others / sqrt(len(by_step)))
    # Two-sided intervals of which only the lower end counts, for each rank of the job.
    reach = error * t_quantile(1 - 2 * _FALSE_ALARMS / len(typical), tells - 1)
    usual = float(np.mean(np.delete(typical, i)))
    return LateRank(
        rank=rank,
        late_ns=round(late),
        score=round(late / error, 2) if error else 0.0,
        slowdown=(others + late) / usual if usual else 1.0,
        low_ns=round(late - reach),
        high_ns=round(late + reach),
        steps_late=int((by_step >= (DEFAULT_SLOWDOWN - 1) * usual).sum()),
        num_steps=len(by_step),
        lasts=all(_sharper(half).value >= 0.4 * late for half in np.array_split(by_step, 2)),
        own_ns=round(float(typical[i])),
        others_ns=round(others),
    )


def _sharper(x: Floats) -> Centre:
    median_error = sqrt(np.pi / 2) * mad_sigma(x) / sqrt(len(x))
    found = centre(x)
    return found if found.error <= median_error else Centre(median(x), median_error)


def independent_samples(x: Floats) -> float:
    """Return the number of independent values with the same information, by the lag-1 autocorrelation."""
    sigma = mad_sigma(x)
    clipped = np.clip(x - median(x), -_CLIP_SIGMAS * sigma, _CLIP_SIGMAS * sigma)
    clipped = clipped - clipped.mean()
    power = float((clipped * clipped).sum())
    if not power:
        return float(len(x))
    # A short series shows less correlation than there is (Kendall: by (1 + 4 r) / n).
    r = float((clipped[1:] * clipped[:-1]).sum()) / power
    r = min(max(r + (1 + 4 * max(r, 0.0)) / len(x), 0.0), 0.95)
    return float(len(x) * (1 - r) / (1 + r))


def own_ns(logs: Sequence[StepLog], *, window_steps: int) -> Floats | None:
    """Return own time per rank and step, NaN where unknown, of the last steps after warm-up that hold `window_steps`
    known ones of every rank; None where ranks have no steps in common.
    """
    length = min((len(log) for log in logs), default=0)
    if not length:
        return None
    settled = max(slow_start(log.dur_ns[:length]) for log in logs)
    own = np.array([_own_ns(log)[:length] for log in logs], float)[:, settled:]
    known = [np.flatnonzero(~np.isnan(row)) for row in own]
    if not all(len(steps) for steps in known):
        return None
    device = [] if has_waits(logs, HOST_WAIT) else [log.column(DEVICE_WAIT) for log in logs]
    unknown = {bool(np.isnan(column).all()) for column in device}
    if len(unknown) > 1:  # ranks read their recorders at different times
        return None
    transfer = 0.0 if True in unknown else min((np.nanmin(column) for column in device), default=0.0)
    first = min(int(steps[-window_steps:][0]) for steps in known)
    return np.asarray(own[:, first:] + transfer)


def _own_by_collectives(logs: Sequence[StepLog], times: Times, window_steps: int) -> Floats | None:
    """Return own time per rank and step from the newest collectives; None where the ranks have too few in common.

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
    return np.asarray(step_ns - took.reshape(len(logs), steps, each).sum(axis=2))


def _own_ns(log: StepLog) -> Floats:
    """Return each step less its wait; a rank that never waits has none to take off. Profiled steps are not known,
    unless all are.
    """
    waited = log.column(HOST_WAIT if has_waits([log], HOST_WAIT) else DEVICE_WAIT)
    waited = np.where(np.abs(waited) < _MAX_WAIT_NS, waited, np.nan)
    own = log.dur_ns - (np.zeros(len(log)) if np.isnan(waited).all() else waited)
    return np.where(log.unprofiled, own, np.nan) if log.unprofiled.any() else np.asarray(own, float)


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
