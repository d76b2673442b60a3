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
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_calls import around_calls, running_operators
from stepscope.analyze.host_time import STALL_NS
from stepscope.analyze.idle import Cause, Idle, idle_time
from stepscope.analyze.layers import COMPUTE_PART, NOTHING, PART_CODE, PARTS, label_ns, painted
from stepscope.analyze.phases import Marks, Regions, host_regions, marks_of, regions
from stepscope.analyze.step_periods import NO_STEP, StepPeriods, step_periods
from stepscope.contract.step_line import EVALUATE, Region, named_region
from stepscope.dataclass import dataclass
from stepscope.intervals import EMPTY, Intervals, complement, subtract, union, union_of
from stepscope.records import ArrayRecord
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.collectives import RECORD
from stepscope.run.device_work import Rows
from stepscope.run.load import each_rank
from stepscope.run.matching import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, by_string, rows_named
from stepscope.trace.table import Int64s

# Where does the step of a rank without a device go? The host's operators are its compute.
#
# At each instant, the first that holds:
#
#     an operator runs on a training thread    its region's part; operators of the data region are data_loading
#     the loop asks for its next batch         data_loading
#     a collective runs                        exposed_transfer, wait, ... (the training thread waits for it)
#     an operator around a collective's call   its region's part: its own code
#     the autograd engine runs a node          backward: its own code
#     none of these for 3 ms or more           host_stall
#     inside a range that names a part         that part: python between two operators
#     outside all ranges                       other_compute: the loop's own python, where ranges name the forward
#     passes;
#                                              not while a collective that was asked for has not begun
#     anything else                            unknown
#
# Operators that only wrap others (autograd nodes, communication calls and what is around them) do not count as
# running:
# inside them the host may well wait (`host_running.py`).

_WRAPPER = re.compile(rf"^{EVALUATE}|Backward\d*$|^(c10d|_c10d_functional|gloo|nccl)::?|^{RECORD}$")

# Ranges nest this way where they do: a closure's forward and backward run inside the optimizer's step.
_INNER_FIRST = (Region.BACKWARD, Region.FORWARD, Region.OPTIMIZER, Region.OTHER)

Layers = list[tuple[int, Intervals]]


def _host_layers(rank: Rank, cuts: Int64s) -> tuple[Layers, Layers]:
    marks = marks_of(rank)
    threads = distinct(np.append(marks.autograd_threads, marks.main_thread))
    operators = _operators(rank, marks, threads, running_operators(rank))
    wrappers = _operators(rank, marks, threads, around_calls(rank))
    data = (PART_CODE["data_loading"], _spans(rank, marks.rows_of(Region.DATA)))
    nodes = _spans(rank, marks.autograd_nodes)
    comm = union(rank.collectives.start_ns, rank.collectives.end_ns)
    recorded = union_of(nodes, data[1], comm, *(spans for _, spans in (*operators, *wrappers)))
    holes = complement(recorded, int(cuts[0]), int(cuts[-1]))
    long = holes.end - holes.start >= STALL_NS
    stalls = Intervals(holes.start[long], holes.end[long])
    ranges = [(COMPUTE_PART[region], _spans(rank, marks.rows_of(region))) for region in _INNER_FIRST]
    named = [(PART_CODE[part], subtract(spans, stalls)) for part, spans in ranges]
    after = [*wrappers, (PART_CODE["backward"], nodes), *named, (PART_CODE["host_stall"], stalls)]
    if len(marks.rows_of(Region.FORWARD)):
        after.append((PART_CODE["other_compute"], _nothing_asked_for(rank, cuts)))
    return [*operators, data], after


def _operators(rank: Rank, marks: Marks, threads: Int64s, chosen: Rows) -> Layers:
    trace = rank.trace
    rows = rows_named(trace, chosen, _computes)
    rows = _outermost(rank, rows[among(trace["tid"][rows], threads)])
    region, _, _ = host_regions(rank, rows, marks)
    return [(PART_CODE[part], _spans(rank, rows[region == code])) for code, part in COMPUTE_PART.items()]


def _computes(name: str) -> bool:
    return not _WRAPPER.search(name) and named_region(name) is None


def _outermost(rank: Rank, rows: Rows) -> Rows:
    trace = rank.trace
    kept = [np.empty(0, np.int64)]
    for thread in distinct(trace["tid"][rows]):
        own = rows[trace["tid"][rows] == thread]
        own = own[np.lexsort((-trace["dur_ns"][own], trace["ts_ns"][own]))]
        reach = np.maximum.accumulate(trace["ts_ns"][own] + trace["dur_ns"][own])
        kept.append(own[np.concatenate(([True], trace["ts_ns"][own[1:]] >= reach[:-1]))])
    return np.concatenate(kept)


def _nothing_asked_for(rank: Rank, cuts: Int64s) -> Intervals:
    return complement(union(rank.collectives.issue_ns, rank.collectives.start_ns), int(cuts[0]), int(cuts[-1]))


def _spans(rank: Rank, rows: Rows) -> Intervals:
    start = rank.trace["ts_ns"][rows]
    return union(start, start + rank.trace["dur_ns"][rows])


# When did the device of a rank run work of other ranks of the job?
#
# Several ranks can share one device (a test on one GPU, small stages of a pipeline). Work that a rank launched long
# ago
# then lies queued while kernels of another rank run: that time has a cause, which no single trace shows. The
# recorder's
# telemetry says by the device's uuid who shares one; ranks without telemetry share with nobody.


def _others_on_device(shared: AlignedRun) -> tuple[Intervals, ...]:
    ranks = shared.run.ranks
    alike: dict[str, list[int]] = defaultdict(list)
    uuid_of = {t.rank: t.device.get("uuid") for t in shared.run.beside.telemetry}
    for index, rank in enumerate(ranks):
        uuid = uuid_of.get(rank.rank)
        if uuid and rank.has_device and shared.clocks.known[index]:
            alike[uuid].append(index)
    out = [EMPTY] * len(ranks)
    for members in alike.values():
        busy = {index: _busy(shared, index) for index in members} if len(members) > 1 else {}
        for index in busy:
            others = union_of(*(busy[other] for other in members if other != index))
            out[index] = _on_clock_of(shared, index, others)
    return tuple(out)


def _busy(shared: AlignedRun, index: int) -> Intervals:
    work = shared.run.ranks[index].work
    return union(shared.clocks.shared(index, work.start_ns), shared.clocks.shared(index, work.end_ns))


def _on_clock_of(shared: AlignedRun, index: int, x: Intervals) -> Intervals:
    if not len(x):
        return x
    at = shared.run.ranks[index].work.start_ns[:1]
    ahead = int((shared.clocks.shared(index, at) - at)[0]) if len(at) else 0
    return Intervals(np.asarray(x.start - ahead), np.asarray(x.end - ahead))


# label of communication that no other rank matches; part of `unknown`
_UNMATCHED_COMM = len(PARTS)

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
    #: one row per period, one column per part of `PARTS`; rows sum to the period
    part_ns: Int64s
    #: idle time: one row per period, one column per `Cause`; all zero on a rank without a device
    cause_ns: Int64s
    #: per period, within `unknown`: exposed communication that no other rank matches
    unmatched_comm_ns: Int64s
    #: the gaps themselves; None on a rank without a device
    idle: Idle | None
    #: of each row of `rank.work`; None on a rank without a device
    regions: Regions | None

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
    others = _others_on_device(shared)
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
    c = rank.collectives
    matched = wait_ns != UNMATCHED
    turns = c.start_ns + np.where(matched, wait_ns, 0)  # the wait is the first part of a collective
    in_pipeline = among(c.op, POINT_TO_POINT) & pipeline
    comm = [
        (PART_CODE["exposed_transfer"], _union(turns, c.end_ns, matched)),
        (_UNMATCHED_COMM, _union(c.start_ns, c.end_ns, ~matched)),
        (PART_CODE["wait"], _union(c.start_ns, turns, matched & ~in_pipeline)),
        (PART_CODE["pipeline_bubble"], _union(c.start_ns, turns, matched & in_pipeline)),
    ]
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
        if (one_way | ((sends + receives > 0) & (rank.collectives.peer >= 0))).any():
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
    cuts = periods.cuts
    before, after = _host_layers(rank, cuts)
    spent = _rows(label_ns(painted([*before, *comm, *after], cuts), cuts, _UNMATCHED_COMM + 1), periods)
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
    return between_cuts[np.searchsorted(periods.cuts, periods.start_ns)]


def _union(start: Int64s, end: Int64s, keep: npt.NDArray[np.bool_]) -> Intervals:
    return union(start[keep], end[keep])
