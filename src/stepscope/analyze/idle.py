"""Why was the device idle: which cause, gap by gap?

A gap ends with a device operation, and that operation's launch tells what the device waited for:

    launched well before the gap   the work lay queued: the device's own turnaround between two operations; when
                                   longer, another rank of the job on the same device (`shared_device.py`), another
                                   stream, or something that no trace holds (another job there, a dependency)
    launched during the gap        the host was late. What it did until the launch is the cause: it waited for the
                                   device, allocated, loaded data, stalled; or it ran operators and python, which
                                   is what launching costs
    no launch in the trace         unknown

A host that is blocked loses its lead over the device. Where the device ran dry during a block, the gap is the block's
up to the length of the block and the ordinary python after it: a longer gap has another cause. Later gaps are its too
until they add up to the time lost: with launches `D` earlier, the idle time after them is `max(0, idle - D)`. So idle
time that looks like launching goes to the last block before it as long as blocks have taken more than idle time has
given.
"""

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_calls import allocations, spans, synchronisations
from stepscope.analyze.host_time import STALL_NS, launching_spans, pageable_copies
from stepscope.analyze.layers import NOTHING, Timeline, painted
from stepscope.analyze.phases import Marks
from stepscope.contract.step_line import Region
from stepscope.dataclass import dataclass
from stepscope.intervals import EMPTY, Intervals, covered_ns, intersect, union_of
from stepscope.records import ArrayRecord
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, of_kinds
from stepscope.trace.table import Int64s

# When was the host kept from launching work, and by what?
#
# Only threads that matter count: the training loop's and those that launch kernels (the autograd engine's). At each
# instant the first of these holds:
#
#     the profiler handing over its own buffers            PROFILER
#     python's garbage collector                           GC
#     the loop asks for its next batch                     DATA
#     memory is being obtained or returned                 ALLOCATOR
#     the host waits for the device, or a copy blocks it   SYNC
#     nothing that launches was recorded for 3 ms or more  STALL
#
# Shorter holes are ordinary python between two operators: part of what launching costs.

# a copy from or to pageable memory whose call takes longer than this kept the host busy with the copy itself
_BLOCKING_COPY_NS = 50_000

_SYNC_OP = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|masked_select|unique\w*|equal)$")
_COLLECTOR = re.compile(r"^<built-in (function|method) (gc\.)?collect|\bgc\.collect\b|\bgc\.py\(|^gc(_collect)?$")
_PROFILER = re.compile(r"^(Activity Buffer|Buffer Flush|Instrumentation|Resource|CUPTI)", re.IGNORECASE)


class BlockCause(IntEnum):
    """What kept the host from launching."""

    PROFILER = 0
    GC = 1
    DATA = 2
    ALLOCATOR = 3
    SYNC = 4
    STALL = 5


def _spans(rank: Rank, rows: Rows, threads: Int64s | None) -> Intervals:
    return spans(rank, rows if threads is None else rows[among(rank.trace["tid"][rows], threads)])


def _profilers_own(rank: Rank) -> Rows:
    return rank.rows_named(lambda s: bool(_PROFILER.search(s)), EventKind.OVERHEAD)


def _collector_spans(rank: Rank, threads: Int64s) -> Intervals:
    collects = rank.rows_named(lambda s: bool(_COLLECTOR.search(s)), EventKind.PYTHON, EventKind.ANNOTATION)
    return _spans(rank, collects, threads)


def _sync_spans(rank: Rank, threads: Int64s) -> Intervals:
    trace = rank.trace
    calls = synchronisations(rank)
    calls = calls[among(trace["tid"][calls], threads)]
    calls = _without_profilers_own(rank, calls)
    ops = rank.rows_named(lambda s: bool(_SYNC_OP.search(s)), EventKind.HOST_OP)
    moments = np.sort(trace["ts_ns"][calls])
    first = np.searchsorted(moments, trace["ts_ns"][ops])
    holds_one = np.searchsorted(moments, trace["ts_ns"][ops] + trace["dur_ns"][ops]) > first
    return _spans(rank, np.concatenate((calls, ops[holds_one], _blocking_copies(rank))), threads)


def _without_profilers_own(rank: Rank, calls: Rows) -> Rows:
    starts = rank.trace["ts_ns"][calls]
    if len(rank.steps):
        return calls[starts < rank.steps.end_ns.max()]
    launches = rank.work.launch_row[rank.work.launch_row >= 0]
    return calls[starts < rank.trace["ts_ns"][launches].max()] if len(launches) else calls


def _blocking_copies(rank: Rank) -> Rows:
    calls = pageable_copies(rank)
    return calls[rank.trace["dur_ns"][calls] >= _BLOCKING_COPY_NS]


def _holes(rank: Rank, threads: Int64s, data: Rows) -> Intervals:
    recorded = launching_spans(rank)
    busy = union_of(_spans(rank, data, threads), *(recorded.get(one, EMPTY) for one in threads.tolist()))
    start, end = busy.end[:-1], busy.start[1:]
    long = end - start >= STALL_NS
    return Intervals(start[long], end[long])


# from the launching call to the earliest start on an idle device; a gap that begins later found its work queued
_VISIBLE_NS = 20_000
# the most a device takes between two operations that lie queued
_TURNAROUND_NS = 10_000


class Cause(IntEnum):
    """Why the device was idle."""

    #: the host had not launched yet: operators, python, the launch itself
    LAUNCH = 0
    #: the device's own time between two queued operations
    TURNAROUND = 1
    SYNC = 2
    ALLOCATOR = 3
    DATA = 4
    GC = 5
    STALL = 6
    #: the work was queued behind another stream's
    OTHER_STREAM = 7
    #: the work was queued and did not start: the trace does not say why
    QUEUED = 8
    PROFILER = 9
    UNKNOWN = 10
    #: the work was queued while the device ran another rank's
    SHARED = 11


# as reports name them, by `Cause`
CAUSE_NAMES = (
    "launch", "device_turnaround", "host_sync", "allocator", "data_loading", "garbage_collector", "host_stall",
    "other_stream", "queued", "profiler", "unknown", "shared_device",
)  # fmt: skip

_OF_BLOCKED = {
    BlockCause.PROFILER: Cause.PROFILER,
    BlockCause.GC: Cause.GC,
    BlockCause.DATA: Cause.DATA,
    BlockCause.ALLOCATOR: Cause.ALLOCATOR,
    BlockCause.SYNC: Cause.SYNC,
    BlockCause.STALL: Cause.STALL,
}
_DEVICES_OWN = (Cause.TURNAROUND, Cause.OTHER_STREAM, Cause.QUEUED, Cause.UNKNOWN, Cause.SHARED)
_LAY_QUEUED = (Cause.OTHER_STREAM, Cause.QUEUED)
_NOT_IDLE = 200


@dataclass(frozen=True, eq=False, repr=False)
class Gaps(ArrayRecord):
    """Times in which the device had nothing to do."""

    start_ns: Int64s
    end_ns: Int64s
    #: the `Cause` of most of it
    cause: npt.NDArray[np.uint8]
    #: row of `rank.work` that ended it, -1 for the end of the window
    next_work: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, eq=False, repr=False)
class Idle(ArrayRecord):
    """The idle time of one rank."""

    #: idle time only, label `Cause`; no slice crosses a period's edge
    slices: Timeline
    gaps: Gaps


def idle_time(rank: Rank, marks: Marks, *, idle: Intervals, cuts: Int64s, others: Intervals = EMPTY) -> Idle:
    """Return the causes of a rank's idle time, which lies between the first and the last cut.

    `others` is when work of other ranks ran on the same device.
    """
    next_work = np.searchsorted(rank.work.start_ns, idle.end)
    next_work = np.where(next_work < len(rank.work), next_work, -1)
    row = np.where(next_work >= 0, rank.work.launch_row[next_work], -1)
    launched = np.where(row >= 0, rank.trace["ts_ns"][row], np.iinfo(np.int64).max)
    decided = _by_launch(rank, idle, next_work, launched)
    work = rank.work
    kernels = (work.launch_row >= 0) & of_kinds(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))
    threads = distinct(np.append(rank.trace["tid"][work.launch_row[kernels]], marks.main_thread))
    data = marks.rows_of(Region.DATA)
    layers = {
        BlockCause.PROFILER: _spans(rank, _profilers_own(rank), None),
        BlockCause.GC: _collector_spans(rank, threads),
        BlockCause.DATA: _spans(rank, data, threads),
        BlockCause.ALLOCATOR: _spans(rank, allocations(rank), threads),
        BlockCause.SYNC: _sync_spans(rank, threads),
        BlockCause.STALL: _holes(rank, threads, data),
    }
    blocked = painted([(int(kind), spans) for kind, spans in layers.items()], cuts)
    slices = _painted_gaps(idle, decided, launched, blocked, cuts, others)
    slices = _with_lost_lead(slices, blocked, _ran_dry_ns(idle, slices, blocked))
    return Idle(slices, Gaps(idle.start, idle.end, _main_cause(idle, slices), next_work))


def _by_launch(rank: Rank, idle: Intervals, next_work: Int64s, launched: Int64s) -> npt.NDArray[np.uint8]:
    long = idle.end - idle.start > _TURNAROUND_NS
    queued = launched < idle.start - np.where(long, _VISIBLE_NS, 0)
    elsewhere = _stream_before(rank, idle.start) != rank.work.stream[next_work]
    cause = np.full(len(idle), NOTHING, np.uint8)
    cause[queued] = np.where(long, np.where(elsewhere, Cause.OTHER_STREAM, Cause.QUEUED), Cause.TURNAROUND)[queued]
    cause[launched == np.iinfo(np.int64).max] = Cause.UNKNOWN
    return cause


def _stream_before(rank: Rank, moment: Int64s) -> Int64s:
    by_end = np.argsort(rank.work.end_ns, kind="stable")
    i = np.searchsorted(rank.work.end_ns[by_end], moment, side="right") - 1
    return np.where(i >= 0, rank.work.stream[by_end[np.maximum(i, 0)]], -1)


def _painted_gaps(
    idle: Intervals,
    decided: npt.NDArray[np.uint8],
    launched: Int64s,
    blocked: Timeline,
    cuts: Int64s,
    others: Intervals,
) -> Timeline:
    shared = intersect(_where(idle, among(decided, _LAY_QUEUED)), others) if len(others) else EMPTY
    after_launch = Intervals(np.maximum(idle.start, np.minimum(launched, idle.end)), idle.end)
    after_launch = _where(after_launch, (decided == NOTHING) & (after_launch.end > after_launch.start))
    by_host = [(int(cause), blocked.of(kind)) for kind, cause in _OF_BLOCKED.items()]
    layers = [(int(Cause.SHARED), shared), (int(Cause.LAUNCH), after_launch), *by_host]
    whole = painted([(_NOT_IDLE, _between(idle, cuts)), *layers], cuts)
    keep = np.flatnonzero(whole.label != _NOT_IDLE)
    start, label = whole.start[keep], whole.label[keep]
    whole_gap = decided[_gap_at(idle, start)]  # what the launch alone decides is the same from end to end
    label = np.where((whole_gap == NOTHING) | (label == Cause.SHARED), label, whole_gap)
    np.putmask(label, label == NOTHING, Cause.LAUNCH)
    return Timeline(start, whole.end[keep], label)


def _gap_at(idle: Intervals, moment: Int64s) -> Int64s:
    return np.searchsorted(idle.start, moment, side="right") - 1


def _ran_dry_ns(idle: Intervals, slices: Timeline, blocked: Timeline) -> Int64s:
    """Return how much of each slice the block explains in which the device ran dry: its length, and python after it."""
    blocks, gap = blocked.of(*BlockCause), _gap_at(idle, slices.start)
    if not len(blocks) or not len(gap):
        return np.zeros(len(gap), np.int64)
    at = np.searchsorted(blocks.start, idle.start, side="right") - 1
    length = np.where((at >= 0) & (blocks.end[at] > idle.start), blocks.end[at] - blocks.start[at] + STALL_NS, 0)
    dur = np.where(slices.label == Cause.LAUNCH, slices.end - slices.start, 0)
    before = np.cumsum(dur) - dur
    before -= before[np.searchsorted(gap, gap)]
    return np.clip(length[gap] - before, 0, dur)


def _with_lost_lead(slices: Timeline, blocked: Timeline, ran_dry_ns: Int64s) -> Timeline:
    taken = blocked.of(*BlockCause)
    if not len(slices.start) or not len(taken):
        return slices
    dur = slices.end - slices.start
    given = np.cumsum(np.where(among(slices.label, _DEVICES_OWN), 0, dur - ran_dry_ns))
    lost = covered_ns(taken, blocked.start[:1], slices.end)
    remains = np.maximum.accumulate(np.maximum(given - lost, 0))  # idle time that no earlier launch would spare
    spared = np.where(slices.label == Cause.LAUNCH, dur - np.diff(remains, prepend=0), 0)
    spared = np.maximum(ran_dry_ns, np.clip(spared, 0, dur))
    at = np.flatnonzero(blocked.label != NOTHING)
    i = np.searchsorted(blocked.start[at], slices.start, side="right") - 1
    cause_of = np.array([_OF_BLOCKED[kind] for kind in BlockCause], np.uint8)
    cause = np.where(i >= 0, cause_of[blocked.label[at[np.maximum(i, 0)]]], Cause.LAUNCH).astype(np.uint8)
    middle = slices.start + spared
    label = np.where(middle >= slices.end, cause, slices.label)
    cut = np.flatnonzero((spared > 0) & (middle < slices.end))
    return Timeline(
        np.insert(slices.start, cut + 1, middle[cut]),
        np.insert(slices.end, cut, middle[cut]),
        np.insert(label, cut, cause[cut]),
    )


def _main_cause(idle: Intervals, slices: Timeline) -> npt.NDArray[np.uint8]:
    time = np.zeros((len(idle), len(Cause)), np.int64)
    place = _gap_at(idle, slices.start) * len(Cause) + slices.label
    np.add.at(time.reshape(-1), place, slices.end - slices.start)
    return time.argmax(axis=1).astype(np.uint8)


def _where(x: Intervals, keep: npt.NDArray[np.bool_]) -> Intervals:
    return Intervals(x.start[keep], x.end[keep])


def _between(idle: Intervals, cuts: Int64s) -> Intervals:
    start = np.concatenate((cuts[:1], idle.end))
    end = np.concatenate((idle.start, cuts[-1:]))
    return _where(Intervals(start, end), end > start)
