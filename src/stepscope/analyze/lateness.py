"""Which ranks are late, and by how much, by their own times and waits alone?

After a collective all ranks have the same step time, so step times cannot tell; and a rank that merely lags behind
by a constant time costs nothing. What tells is a rank's *own time* (`own_time.py`). A rank is late when its own time is
an outlier among the others' (leave-one-out, robust score), at least 10 % above their mean, and the others do wait for
it. That needs no events, so it is asked of all ranks of a job, those that are not there in full included.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from stepscope.analyze.outlined_rank import own_ns, own_time_of
from stepscope.analyze.phases import Passes, Phase
from stepscope.analyze.rank_windows import host_compute
from stepscope.contract.live import DEFAULT_SCORE, DEFAULT_SLOWDOWN, DEFAULT_WINDOW_STEPS, NOISE_SHARE
from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, clip, subtract, union, union_of
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.matching import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, common, distinct
from stepscope.stats.robust import mad_sigma, median
from stepscope.trace.classify import EventKind

Floats = npt.NDArray[np.float64]

# a late rank waits less than this share of what the others wait
_WAITS_LESS = 0.5
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Lateness:
    """A rank that is late, before it is known why."""

    rank: int
    late_ns: float
    steps_late: int
    num_steps: int
    score: float
    slowdown: float
    #: the ranks whose own times are known
    compared: tuple[int, ...]


def late_ranks(
    shared: AlignedRun,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    threshold: float = DEFAULT_SCORE,
    slowdown: float = DEFAULT_SLOWDOWN,
    overhead_ns_per_step: float = 0.0,
) -> list[Lateness]:
    """Return which ranks are late and by how much, the latest first; by their own times and waits alone."""
    own = own_times(shared)
    compared = np.flatnonzero(~np.isnan(own).any(axis=1)) if own is not None else np.empty(0, int)
    if own is None or len(compared) < 2:
        return []
    waited = _waited_in_steps(shared)[:, -window_steps:]
    own = own[:, -window_steps:]
    numbers = tuple(shared.run.ranks[index].rank for index in compared.tolist())
    found = []
    for index in _slower(own, compared, slowdown):
        peers = compared[compared != index]
        others = own[peers]
        mine, theirs = float(own[index].mean()), others.mean(axis=1)
        late_ns = mine - median(theirs)
        noise = max(mad_sigma(theirs), NOISE_SHARE * median(theirs))
        score = late_ns / noise if noise else 0.0
        late_in = own[index] >= slowdown * others.mean(axis=0)
        if score < threshold or mine < slowdown * theirs.mean() or late_ns <= overhead_ns_per_step:
            continue
        # Ranks that are late in turn wait for each other: what counts is who waits in the steps in which it is late.
        then = late_in if late_in.any() else np.ones_like(late_in)
        if waited[index, then].sum() >= _WAITS_LESS * median(waited[peers][:, then].sum(axis=1)):
            continue
        found.append(
            Lateness(
                rank=shared.run.ranks[index].rank,
                late_ns=late_ns,
                steps_late=int(late_in.sum()),
                num_steps=own.shape[1],
                score=round(score, 2),
                slowdown=float(mine / theirs.mean()),
                compared=numbers,
            )
        )
    return sorted(found, key=lambda one: -one.late_ns)


def _slower(own: Floats, compared: npt.NDArray[np.int64], slowdown: float) -> list[int]:
    mean = own[compared].mean(axis=1)
    others = (mean.sum() - mean) / (len(mean) - 1)
    return [int(index) for index in compared[mean >= (1 - _ROUNDING) * slowdown * others]]


def own_times(shared: AlignedRun) -> Floats | None:
    """Return own time per rank and common step in ns, None where the ranks have no step or no collective in common.

    Windows that no step divides begin and end anywhere, so nobody's time in them can be held against another's.

    NaN for ranks that recorded no step, or took part in nothing that could be matched: nobody is known to wait for
    them.
    """
    numbers = common_steps(shared.run.ranks)
    if not len(numbers) or not len(shared.matches) or any(rank.steps.is_window for rank in shared.run.ranks):
        return None
    own = np.full((len(shared.run.ranks), len(numbers)), np.nan)
    for index in distinct(shared.matches.rank_index).tolist():
        rank = shared.run.ranks[index]
        if not len(rank.steps):
            continue
        waits = _waiting(shared, index)
        by_number = np.argsort(rank.steps.number)
        at = by_number[np.searchsorted(rank.steps.number, numbers, sorter=by_number)]
        if rank.has_device:
            # How much of an unmatched collective is waiting is unknown: being in one is nobody's own time.
            waits = union_of(waits, _unmatched(shared, index))
        own[index] = own_ns(own_time_of(rank), rank.steps, waits)[at]
    return own


def _waiting(shared: AlignedRun, index: int) -> Intervals:
    """Return when a rank did nothing but wait for others inside collectives.

    Point-to-point waits do not count: in a pipeline they are the schedule's, not a late rank's.
    """
    c, wait = shared.run.ranks[index].collectives, shared.wait_ns[index]
    counts = (wait > 0) & ~among(c.op, POINT_TO_POINT)
    return union(c.start_ns[counts], c.start_ns[counts] + wait[counts])


def _waited_in_steps(shared: AlignedRun) -> Floats:
    ranks, numbers = shared.run.ranks, common_steps(shared.run.ranks)
    out = np.zeros((len(ranks), len(numbers)))
    for index, rank in enumerate(ranks):
        c, wait = rank.collectives, shared.wait_ns[index]
        counts = np.flatnonzero((wait > 0) & ~among(c.op, POINT_TO_POINT) & (c.step >= 0))
        number = rank.steps.number[c.step[counts]]
        common = among(number, numbers)
        np.add.at(out[index], np.searchsorted(numbers, number[common]), wait[counts][common])
    return out


def _unmatched(shared: AlignedRun, index: int) -> Intervals:
    c = shared.run.ranks[index].collectives
    lost = shared.wait_ns[index] == UNMATCHED
    return union(c.start_ns[lost], c.end_ns[lost])


def common_steps(ranks: Sequence[Rank]) -> npt.NDArray[np.int64]:
    """Return the step numbers that every rank recorded; ranks that recorded none have no say."""
    recorded = [rank.steps.number for rank in ranks if len(rank.steps)]
    return np.sort(reduce(common, recorded)) if recorded else np.empty(0, np.int64)


# How long does a rank compute in each phase of a step: its device, or the host where there is none?


def phase_compute_ns(rank: Rank, found: Passes) -> dict[Phase, float] | None:
    """Return the mean per recorded step of the time with compute of each phase, None where phases are unknown.

    A kernel belongs to the phase in which the host launched it. Communication is no compute.
    """
    if not found.known or not len(rank.steps) or not len(found.backward):
        return None
    spans = _device_spans(rank, found) if rank.has_device else _host_spans(rank, found)
    return {phase: span.total_ns / len(rank.steps) for phase, span in spans.items()}


def _device_spans(rank: Rank, found: Passes) -> dict[Phase, Intervals]:
    work, trace = rank.work, rank.trace
    mine = np.flatnonzero((work.kind == EventKind.KERNEL) & (work.step >= 0) & (work.launch_row >= 0))
    launch = work.launch_row[mine]
    phase = found.at(trace["ts_ns"][launch], trace["tid"][launch])
    return {p: union(work.start_ns[mine[phase == p]], work.end_ns[mine[phase == p]]) for p in Phase}


def _host_spans(rank: Rank, found: Passes) -> dict[Phase, Intervals]:
    computed = clip(host_compute(rank), int(rank.steps.start_ns.min()), int(rank.steps.end_ns.max()))
    outside = subtract(computed, found.backward)
    between = subtract(outside, found.optimizer)
    phase = found.at(between.start, np.full(len(between), -1, np.int64))
    spans = {p: union(between.start[phase == p], between.end[phase == p]) for p in Phase}
    spans[Phase.BACKWARD] = subtract(computed, outside)
    spans[Phase.OPTIMIZER] = subtract(outside, between)
    return spans
