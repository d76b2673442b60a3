"""Where did each step of each rank go? Every instant of a step's period is exactly one part.

The first of these that holds at an instant names its part:

    a compute kernel runs                    forward, backward, optimizer, other_compute by its launch;
                                             kernels of the data region are data_loading
    a copy between host and device runs      copy (on-device copies and sets are compute of their region)
    a collective moves data                  exposed_transfer
    a collective that no other rank matches  unknown: waiting and transfer cannot be told apart
    a collective waits for a later rank      wait; pipeline_bubble between the stages of a pipeline
    the device is idle                       data_loading, launch_gap, host_sync, allocator, host_stall, unknown
                                             by the cause (`idle.py`); other_compute where it runs another rank's work

Parts are integer nanoseconds and sum to the period.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.attribution.host_budget import host_layers
from stepscope.analyze.attribution.idle import Cause, Idle, idle_time
from stepscope.analyze.attribution.shared_device import others_on_device
from stepscope.analyze.step.layers import NOTHING, label_ns, painted
from stepscope.analyze.step.parts import COMPUTE_PART, PART_CODE, PARTS
from stepscope.analyze.step.periods import NO_STEP, StepPeriods, step_periods
from stepscope.analyze.step.regions import Regions, marks_of, regions
from stepscope.dataclass import dataclass
from stepscope.intervals import EMPTY, Intervals, union
from stepscope.records import ArrayRecord
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.each_rank import each_rank
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.table import Int64s

_UNMATCHED_COMM = len(PARTS)
"""label of communication that no other rank matches; part of `unknown`"""

_ON_DEVICE = re.compile(r"DtoD|Device -> Device|DeviceToDevice", re.IGNORECASE)

PART_OF_CAUSE = {
    Cause.LAUNCH: "launch_gap",
    Cause.TURNAROUND: "launch_gap",
    Cause.SYNC: "host_sync",
    Cause.ALLOCATOR: "allocator",
    Cause.DATA: "data_loading",
    Cause.GC: "host_stall",
    Cause.STALL: "host_stall",
    Cause.OTHER_STREAM: "unknown",
    Cause.QUEUED: "unknown",
    Cause.PROFILER: "unknown",
    Cause.UNKNOWN: "unknown",
    Cause.SHARED: "other_compute",
}


@dataclass(frozen=True, eq=False, repr=False)
class RankBudget(ArrayRecord):
    """The budget of one rank, step by step."""

    periods: StepPeriods
    part_ns: Int64s
    """one row per period, one column per part of `PARTS`; rows sum to the period"""
    cause_ns: Int64s
    """idle time: one row per period, one column per `Cause`; all zero on a rank without a device"""
    unmatched_comm_ns: Int64s
    """per period, within `unknown`: exposed communication that no other rank matches"""
    idle: Idle | None
    """the gaps themselves; None on a rank without a device"""
    regions: Regions | None
    """of each row of `rank.work`; None on a rank without a device"""

    @property
    def on_device(self) -> bool:
        """Return whether the device was accounted for; if not, the host was."""
        return self.idle is not None

    def ns(self, part: str) -> Int64s:
        """Return one part per period."""
        return self.part_ns[:, PART_CODE[part]]


def budgets(shared: AlignedRun) -> tuple[RankBudget | None, ...]:
    """Return the budget of every rank; None for one whose trace holds neither steps nor work.

    None as well for a rank without a complete step beside ranks that have some: its window is not a step of theirs.
    """
    pipeline = is_pipeline(shared.run.ranks)
    others = others_on_device(shared)
    found = each_rank(
        shared.run,
        lambda index, rank: rank_budget(rank, wait_ns=shared.wait_ns[index], pipeline=pipeline, others=others[index]),
    )
    in_steps = [b is not None and bool((b.periods.step != NO_STEP).any()) for b in found]
    return tuple(b if steps else None for b, steps in zip(found, in_steps, strict=True)) if any(in_steps) else found


def rank_budget(rank: Rank, *, wait_ns: Int64s, pipeline: bool = False, others: Intervals = EMPTY) -> RankBudget | None:
    """Return the budget of one rank, given how long it waited in each of its collectives (UNMATCHED: unknown), and
    when other ranks' work ran on its device.
    """
    periods = step_periods(rank)
    if periods is None:
        return None
    comm = _comm_layers(rank, wait_ns, pipeline=pipeline)
    return _device_budget(rank, periods, comm, others) if rank.has_device else _host_budget(rank, periods, comm)


def is_pipeline(ranks: Sequence[Rank]) -> bool:
    """Return whether point-to-point messages run between stages of a pipeline, and not around a ring.

    Around a ring (context parallelism) every operation of every rank sends to one neighbour and receives from
    another; in a pipeline some only send, only receive, or exchange with one peer.
    """
    for rank in ranks:
        messages = rank.collectives.messages
        sends = np.bincount(messages.collective[messages.is_send], minlength=len(rank.collectives))
        receives = np.bincount(messages.collective[~messages.is_send], minlength=len(rank.collectives))
        one_way = (sends > 0) != (receives > 0)
        one_peer = (sends + receives > 0) & (rank.collectives.peer >= 0)
        if (one_way | one_peer).any():
            return True
    return False


def host_device_copies(rank: Rank) -> npt.NDArray[np.bool_]:
    """Return which rows of `rank.work` move data to or from the device: all copies but those that stay on it."""
    work = rank.work
    copies = np.flatnonzero(work.kind == EventKind.COPY)
    stays = by_string(rank.trace, work.name[copies], lambda s: bool(_ON_DEVICE.search(s))).astype(bool)
    out = np.zeros(len(work), bool)
    out[copies[~stays]] = True
    return out


Layers = list[tuple[int, Intervals]]


def _comm_layers(rank: Rank, wait_ns: Int64s, *, pipeline: bool) -> Layers:
    """Return the communication of a rank: transfer, unmatched, waiting, waiting in a pipeline."""
    c = rank.collectives
    matched = wait_ns != UNMATCHED
    turns = c.start_ns + np.where(matched, wait_ns, 0)  # the wait is the first part of a collective
    in_pipeline = among(c.op, POINT_TO_POINT) & pipeline
    return [
        (PART_CODE["exposed_transfer"], _union(turns, c.end_ns, matched)),
        (_UNMATCHED_COMM, _union(c.start_ns, c.end_ns, ~matched)),
        (PART_CODE["wait"], _union(c.start_ns, turns, matched & ~in_pipeline)),
        (PART_CODE["pipeline_bubble"], _union(c.start_ns, turns, matched & in_pipeline)),
    ]


def _device_budget(rank: Rank, periods: StepPeriods, comm: Layers, others: Intervals) -> RankBudget:
    work, cuts = rank.work, periods.cuts
    marks = marks_of(rank)
    found = regions(rank, marks)
    moves = host_device_copies(rank)
    computes = (work.kind != EventKind.COMM_KERNEL) & ~moves
    compute = [
        (PART_CODE[part], _union(work.start_ns, work.end_ns, computes & (found.region == code)))
        for code, part in COMPUTE_PART.items()
    ]
    copies = (PART_CODE["copy"], _union(work.start_ns, work.end_ns, moves))
    device = painted([*compute, copies, *comm], cuts)
    idle = idle_time(rank, marks, idle=device.of(NOTHING), cuts=cuts, others=others)
    busy_ns = _rows(label_ns(device, cuts, _UNMATCHED_COMM + 1), periods)
    cause_ns = _rows(label_ns(idle.slices, cuts, len(Cause)), periods)
    part_ns = _with_unmatched(busy_ns)
    for cause, part in PART_OF_CAUSE.items():
        part_ns[:, PART_CODE[part]] += cause_ns[:, cause]
    return RankBudget(periods, part_ns, cause_ns, busy_ns[:, _UNMATCHED_COMM], idle, found)


def _host_budget(rank: Rank, periods: StepPeriods, comm: Layers) -> RankBudget:
    """Return the budget of a rank without a device, from what its host ran (`host_budget.py`)."""
    cuts = periods.cuts
    before, after = host_layers(rank, cuts)
    host = painted([*before, *comm, *after], cuts)
    spent = _rows(label_ns(host, cuts, _UNMATCHED_COMM + 1), periods)
    no_causes = np.zeros((len(periods), len(Cause)), np.int64)
    part_ns = _with_unmatched(spent)
    if rank.device_unseen:  # the host launched what it ran: when the device computed, nobody knows
        part_ns[:, [PART_CODE[part] for part in set(COMPUTE_PART.values()) - {"data_loading"}]] = 0
    part_ns[:, PART_CODE["unknown"]] += periods.dur_ns - part_ns.sum(axis=1)
    return RankBudget(periods, part_ns, no_causes, spent[:, _UNMATCHED_COMM], None, None)


def _with_unmatched(time_ns: Int64s) -> Int64s:
    out = time_ns[:, : len(PARTS)].copy()
    out[:, PART_CODE["unknown"]] += time_ns[:, _UNMATCHED_COMM]
    return out


def _rows(between_cuts: Int64s, periods: StepPeriods) -> Int64s:
    """Return the rows that are periods, not the time between two of them."""
    return between_cuts[np.searchsorted(periods.cuts, periods.start_ns)]


def _union(start: Int64s, end: Int64s, keep: npt.NDArray[np.bool_]) -> Intervals:
    return union(start[keep], end[keep])
