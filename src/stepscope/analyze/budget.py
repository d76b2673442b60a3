"""Where did each step of each rank go? Every instant of a step's period is exactly one part.

The first of these that holds at an instant names its part:

    a compute kernel runs                    forward, backward, optimizer, other_compute by its launch;
                                             kernels of the data region are data_loading
    a copy between host and device runs      copy (on-device copies and sets are compute of their region)
    a collective moves data                  exposed_transfer
    a collective that no other rank matches  unknown: waiting and transfer cannot be separated
    a collective waits for a later rank      wait; pipeline_bubble between the stages of a pipeline
    the device is idle                       data_loading, launch_gap, host_sync, allocator, host_stall, unknown
                                             by the cause; other_compute where it runs another rank's work

Parts are integer nanoseconds and sum to the period.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import (
    MIN_HOLE_NS,
    STALL_NS,
    allocations,
    around_calls,
    computing_operators,
    host_calls,
    is_allocation,
    is_synchronisation,
    launching_spans,
    operators_without_calls,
    pageable_copies,
    records_operators,
    running_operators,
    runtime_rows,
    spans,
    synchronisations,
)
from stepscope.analyze.phases import (
    NO_STEP,
    Marks,
    Regions,
    StepPeriods,
    graph_launches,
    host_regions,
    marks_of,
    profiled_step_ns,
    regions,
    step_periods,
)
from stepscope.analyze.training_step import COMMUNICATION, DATA_CAUSES, TrainingStep
from stepscope.contract.step_line import (
    BACKWARD,
    CLIPPING,
    EVALUATE,
    FORWARD,
    GRADIENT_SYNC,
    LR_SCHEDULING,
    OPTIMIZER,
    Region,
    named_region,
)
from stepscope.intervals import EMPTY, Intervals, clip, complement, covered_ns, intersect, subtract, union, union_of
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.aligned import UNMATCHED, AlignedRun, sharing_ranks
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.collectives import RECORD
from stepscope.run.device_work import Rows
from stepscope.run.load import Run, each_rank
from stepscope.run.rank import Rank
from stepscope.stats.robust import FAR_LONGER, among, distinct, distinct_places
from stepscope.trace.table import EventKind, Int64s, by_string, of_kinds, rows_named
from stepscope.units import ms, ns_of_ms

# Who owns each instant? Layers of intervals painted over one another, the first layer on top.
#
#     layers   a [0, 4)        b [2, 6)        ->  a [0, 2) a [2, 4) b [4, 6) NOTHING [6, 9)
#     cuts     0, 9
#
# Every instant between the first and the last cut is in exactly one segment, so durations sum to the whole.

# label of instants that no layer covers
NOTHING = 255

Labels = npt.NDArray[np.uint8]
Layers = list[tuple[int, Intervals]]


class Timeline(NamedTuple):
    """Consecutive segments, each with one label."""

    start: Int64s
    end: Int64s
    label: Labels

    def of(self, *labels: int) -> Intervals:
        keep = among(self.label, labels)
        return union(self.start[keep], self.end[keep])


def painted(layers: Sequence[tuple[int, Intervals]], cuts: npt.ArrayLike) -> Timeline:
    """Return the time between the first and the last cut, each instant with the label of the first layer over it.

    No segment crosses a cut. Cuts ascend.
    """
    edges = np.asarray(cuts, np.int64)
    clipped = [(label, clip(x, int(edges[0]), int(edges[-1]))) for label, x in layers if len(x)]
    bounds, place = distinct_places(np.concatenate([edges, *(np.stack(x, axis=1).ravel() for _, x in clipped)]))
    inside, at = np.zeros(len(bounds), np.uint32), len(edges)  # a bit for each layer
    for i, (_, x) in enumerate(clipped):
        after = at + 2 * len(x)
        inside[place[at:after:2]] ^= 1 << i
        inside[place[at + 1 : after : 2]] ^= 1 << i
        at = after
    first_over = _first_layers([label for label, _ in clipped])
    return Timeline(bounds[:-1], bounds[1:], first_over.take(np.bitwise_xor.accumulate(inside[:-1])))


def _first_layers(labels: Sequence[int]) -> Labels:
    out = np.full(1, NOTHING, np.uint8)
    for label in reversed(labels):
        out = np.stack((out, np.full(len(out), label, np.uint8)), axis=1).ravel()
    return out


def label_ns(timeline: Timeline, cuts: npt.ArrayLike, num_labels: int) -> Int64s:
    """Return the time of each label between neighbouring cuts, as rows of `num_labels` columns."""
    edges = np.asarray(cuts, np.int64)
    out = np.zeros((max(len(edges) - 1, 0), num_labels), np.int64)
    known = np.flatnonzero(timeline.label < num_labels)
    start, label = timeline.start[known], timeline.label[known]
    first = np.append(np.searchsorted(start, edges), len(start))
    place = np.repeat(np.arange(-1, len(edges)) * num_labels, np.diff(first, prepend=0)) + label
    np.add.at(out.reshape(-1), place, timeline.end[known] - start)
    return out


# The parts of a step's budget, as the contract names them, and what becomes of each region of training.

PARTS = (
    "forward", "backward", "optimizer", "other_compute", "exposed_transfer", "wait", "pipeline_bubble", "copy",
    "data_loading", "launch_gap", "host_sync", "allocator", "host_stall", "unknown",
)  # fmt: skip
PART_CODE = {part: code for code, part in enumerate(PARTS)}

# what computing in a region is; where two run at once the first of these counts
COMPUTE_PART = {
    Region.FORWARD: "forward",
    Region.BACKWARD: "backward",
    Region.OPTIMIZER: "optimizer",
    Region.OTHER: "other_compute",
    Region.DATA: "data_loading",
}


# Why was the device idle: which cause, gap by gap?
#
# A gap ends with a device operation, and the launch of that operation shows what the device waited for:
#
#     launched well before the gap   the work was queued: the device's own turnaround between two operations; when
#                                    longer, another rank of the job on the same device, another
#                                    stream, or something not recorded (another job there, a dependency)
#     launched during the gap, or    the host was late. What it did until the launch is the cause: it waited for the
#     its launch returns there       device, allocated, loaded data, copied, stalled; or it ran operators and python,
#                                    or loaded a module, which is what launching costs
#     no launch in the trace         unknown
#
# A blocked host loses its lead over the device. Where the device ran dry during a block, the gap is attributed to the
# block up to the length of the block and the ordinary python after it: a longer gap has another cause. So are later
# gaps until they add up to the time lost: with launches `D` earlier, the idle time after them is `max(0, idle - D)`.
# So idle time that resembles launch overhead is attributed to the last block until the time blocked is used up.

# When could the host not launch work, and why?
#
# Only threads that matter count: the training loop's and those that launch kernels (the autograd engine's). At each
# instant the first of these holds:
#
#     the profiler starts, stops or hands over its buffers PROFILER
#     python's garbage collector                           GC
#     the loop waits for its next batch                    DATA
#     memory is being obtained or returned                 ALLOCATOR
#     the host waits for the device                        SYNC
#     a copy from or to pageable memory blocks it          COPY
#     nothing that launches was recorded for 3 ms or more  STALL; unknown where the trace has no operators at all
#
# Shorter holes are ordinary python between two operators: launch overhead. Without operators, a hole of a millisecond
# after a synchronisation is unknown: the host's activity is not recorded.

# a copy from or to pageable memory whose call takes longer than this blocked the host for the copy itself
_BLOCKING_COPY_NS = 50_000

# ordinary launches take 3 to 20 microseconds, those of a large graph more
_SLOW_CALL_NS = 200_000

_SYNC_OP = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|masked_select|unique\w*|equal)$")
_COLLECTOR = re.compile(r"^<built-in (function|method) (gc\.)?collect|\bgc\.collect\b|\bgc\.py\(|^gc(_collect)?$")
_PROFILER = re.compile(
    r"^(Activity Buffer|Buffer Flush|Instrumentation|Resource|CUPTI)|^(cuda?|hip)ProfilerSt(art|op)$", re.IGNORECASE
)


class BlockCause(IntEnum):
    """Why the host could not launch."""

    PROFILER = 0
    GC = 1
    DATA = 2
    ALLOCATOR = 3
    SYNC = 4
    COPY = 5
    STALL = 6


def _spans(rank: Rank, rows: Rows, threads: Int64s | None) -> Intervals:
    return spans(rank, rows if threads is None else rows[among(rank.trace["tid"][rows], threads)])


def _profilers_own(rank: Rank) -> Rows:
    return rank.rows_named(lambda s: bool(_PROFILER.search(s)), EventKind.OVERHEAD, EventKind.RUNTIME)


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
    return _spans(rank, np.concatenate((calls, ops[holds_one])), threads)


def _without_profilers_own(rank: Rank, calls: Rows) -> Rows:
    starts = rank.trace["ts_ns"][calls]
    if len(rank.steps):
        return calls[starts < rank.steps.end_ns.max()]
    launches = rank.work.launch_row[rank.work.launch_row >= 0]
    return calls[starts < rank.trace["ts_ns"][launches].max()] if len(launches) else calls


def _blocking_copies(rank: Rank) -> Rows:
    calls = pageable_copies(rank)
    return calls[rank.trace["dur_ns"][calls] >= _BLOCKING_COPY_NS]


def _slow_calls(rank: Rank, threads: Int64s) -> Intervals:
    """Return the calls that neither wait, copy nor allocate and take far longer than a launch, as loading a module
    does, and the operators that take as long without a call.
    """
    calls = rank.rows_named(_is_own, EventKind.RUNTIME)
    slow = calls[rank.trace["dur_ns"][calls] >= _SLOW_CALL_NS]
    operators, each = computing_operators(rank), host_calls(rank)
    by_itself = each.row[each.self_ns() >= MIN_HOLE_NS] if len(operators) else each.row[:0]
    return _spans(rank, np.concatenate((slow, operators[among(operators, by_itself)])), threads)


def _is_own(call: str) -> bool:
    return not (is_synchronisation(call) or is_allocation(call) or "Memcpy" in call or _PROFILER.search(call))


def _holes(rank: Rank, threads: Int64s, data: Rows, least_ns: int = STALL_NS) -> Intervals:
    recorded = launching_spans(rank)
    busy = union_of(_spans(rank, data, threads), *(recorded.get(one, EMPTY) for one in threads.tolist()))
    start, end = busy.end[:-1], busy.start[1:]
    long = end - start >= least_ns
    return Intervals(start[long], end[long])


# from the launching call to the earliest start on an idle device; a gap that begins later found its work queued
_VISIBLE_NS = 20_000
# the most a device takes between two queued operations
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
    #: a copy from or to pageable memory blocks the host
    COPY = 12
    #: the host had waited for the device, or for a copy, and had not launched again yet
    AFTER_SYNC = 13
    #: a call took far longer than a launch: it loads a module, moves memory; no earlier launch would spare it
    SLOW_CALL = 14


# as reports name them, by `Cause`
CAUSE_NAMES = (
    "launch", "device_turnaround", "host_sync", "allocator", "data_loading", "garbage_collector", "host_stall",
    "other_stream", "queued", "profiler", "unknown", "shared_device", "blocking_copy", "after_sync", "slow_call",
)  # fmt: skip

_OF_BLOCKED = {
    BlockCause.PROFILER: Cause.PROFILER,
    BlockCause.GC: Cause.GC,
    BlockCause.DATA: Cause.DATA,
    BlockCause.ALLOCATOR: Cause.ALLOCATOR,
    BlockCause.SYNC: Cause.SYNC,
    BlockCause.COPY: Cause.COPY,
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
    """Return the causes of a rank's idle time between the first and the last cut.

    `others` is when work of other ranks ran on the same device.
    """
    next_work = np.searchsorted(rank.work.start_ns, idle.end)
    next_work = np.where(next_work < len(rank.work), next_work, -1)
    row = np.where(next_work >= 0, rank.work.launch_row[next_work], -1)
    launched = np.where(row >= 0, rank.trace["ts_ns"][row], np.iinfo(np.int64).max)
    decided = _by_launch(rank, idle, next_work, launched)
    blocks = among(row, np.concatenate((synchronisations(rank), _blocking_copies(rank))))  # they launch their own copy
    launched[blocks] += rank.trace["dur_ns"][row[blocks]]
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
        BlockCause.COPY: _spans(rank, _blocking_copies(rank), threads),
        BlockCause.STALL: _holes(rank, threads, data),
    }
    blocked = painted([(int(kind), spans) for kind, spans in layers.items()], cuts)
    unrecorded = EMPTY if records_operators(rank) else _holes(rank, threads, data, MIN_HOLE_NS)
    own = [(int(Cause.SLOW_CALL), _slow_calls(rank, threads)), (int(Cause.LAUNCH), unrecorded)]
    slices = _painted_gaps(idle, decided, launched, blocked, cuts, others, own)
    slices = _with_lost_lead(slices, blocked, _ran_dry_ns(idle, slices, blocked))
    if not records_operators(rank):  # a host without records may do anything
        hidden = (slices.label == Cause.AFTER_SYNC) & (covered_ns(unrecorded, slices.start, slices.end) > 0)
        hidden |= slices.label == Cause.STALL
        slices = slices._replace(label=np.where(hidden, np.uint8(Cause.UNKNOWN), slices.label))
    return Idle(slices, Gaps(idle.start, idle.end, _main_cause(idle, slices), next_work))


def _by_launch(rank: Rank, idle: Intervals, next_work: Int64s, launched: Int64s) -> npt.NDArray[np.uint8]:
    long = idle.end - idle.start > _TURNAROUND_NS
    queued = launched < idle.start - np.where(long, _VISIBLE_NS, 0)
    row = rank.work.launch_row[next_work]
    returned = rank.trace["ts_ns"][row] + rank.trace["dur_ns"][row]
    first = (next_work == 0) | (rank.work.launch_row[next_work - (next_work > 0)] != row)
    queued &= ~(long & first & (returned > idle.start))  # the host is still launching it
    elsewhere = _stream_before(rank, idle.start) != rank.work.stream[next_work]
    cause = np.full(len(idle), NOTHING, np.uint8)
    cause[queued] = np.where(long, np.where(elsewhere, Cause.OTHER_STREAM, Cause.QUEUED), Cause.TURNAROUND)[queued]
    cause[launched == np.iinfo(np.int64).max] = Cause.UNKNOWN
    cause[_may_run_graphs(rank, idle, next_work)] = Cause.UNKNOWN
    for last in np.flatnonzero((next_work < 0) & (idle.end - idle.start >= STALL_NS)).tolist():
        frames = _spans(rank, np.flatnonzero(of_kinds(rank.kinds, (EventKind.PYTHON,))), None)
        if 2 * clip(frames, int(idle.start[last]), int(idle.end[last])).total_ns > idle.end[last] - idle.start[last]:
            cause[last] = Cause.STALL  # the host runs Python to the end of the step and launches nothing
    return cause


def _may_run_graphs(rank: Rank, idle: Intervals, next_work: Int64s) -> npt.NDArray[np.bool_]:
    """Return the gaps in which a graph may have run whose kernels were not recorded: launched after all work before."""
    launches_ns = np.sort(rank.trace["ts_ns"][graph_launches(rank)[1]])
    if not len(launches_ns):
        return np.zeros(len(idle), bool)
    launch = rank.work.launch_row
    before_ns = np.where(launch >= 0, rank.trace["ts_ns"][launch], np.iinfo(np.int64).min)
    latest = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(before_ns))
    since = latest[np.where(next_work >= 0, next_work, len(launch))]
    return np.searchsorted(launches_ns, idle.end) > np.searchsorted(launches_ns, since)


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
    own: Layers,
) -> Timeline:
    shared = intersect(_where(idle, among(decided, _LAY_QUEUED)), others) if len(others) else EMPTY
    after_launch = Intervals(np.maximum(idle.start, np.minimum(launched, idle.end)), idle.end)
    after_launch = _where(after_launch, (decided == NOTHING) & (after_launch.end > after_launch.start))
    by_host = [(int(cause), blocked.of(kind)) for kind, cause in _OF_BLOCKED.items()]
    layers = [
        (int(Cause.SHARED), shared),
        *((cause, intersect(after_launch, calls)) for cause, calls in own),
        (int(Cause.LAUNCH), after_launch),
        *by_host,
        *own,
    ]
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
    last = at[np.maximum(i, 0)]
    cause = np.where(i >= 0, cause_of[blocked.label[last]], Cause.LAUNCH).astype(np.uint8)
    cause[among(cause, (Cause.SYNC, Cause.COPY)) & (blocked.end[last] <= slices.start)] = Cause.AFTER_SYNC
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


# Where does the step of a rank without a device go? The host's operators are its compute.
#
# At each instant, the first that holds:
#
#     an operator runs on a training thread    its region's part; operators of the data region are data_loading
#     the loop waits for its next batch        data_loading
#     a collective runs                        exposed_transfer, wait, ... (the training thread waits for it)
#     an operator around a collective's call   its region's part: its own code
#     the autograd engine runs a node          backward: its own code
#     none of these for 3 ms or more           host_stall
#     inside a range that names a part         that part: python between two operators
#     outside all ranges                       other_compute: the loop's own python, where ranges name the forward
#                                              passes; not while an issued collective has not begun
#     anything else                            unknown
#
# Operators that only wrap others (autograd nodes, communication calls and what is around them) do not count as
# running: the host may be waiting inside them.

_WRAPPER = re.compile(rf"^{EVALUATE}|Backward\d*$|^(c10d|_c10d_functional|gloo|nccl)::?|^{RECORD}$")

# Ranges nest this way where they do: a closure's forward and backward run inside the optimizer's step.
_INNER_FIRST = (Region.BACKWARD, Region.FORWARD, Region.OPTIMIZER, Region.OTHER)


def _host_layers(rank: Rank, cuts: Int64s) -> tuple[Layers, Layers]:
    marks = marks_of(rank)
    threads = distinct(np.append(marks.autograd_threads, marks.main_thread))
    operators = _operators(rank, marks, threads, running_operators(rank))
    wrappers = _operators(rank, marks, threads, around_calls(rank))
    data = (PART_CODE["data_loading"], spans(rank, marks.rows_of(Region.DATA)))
    nodes = spans(rank, marks.autograd_nodes)
    comm = union(rank.collectives.start_ns, rank.collectives.end_ns)
    recorded = union_of(nodes, data[1], comm, *(spans for _, spans in (*operators, *wrappers)))
    holes = complement(recorded, int(cuts[0]), int(cuts[-1]))
    long = holes.end - holes.start >= STALL_NS
    stalls = Intervals(holes.start[long], holes.end[long])
    ranges = [(COMPUTE_PART[region], spans(rank, marks.rows_of(region))) for region in _INNER_FIRST]
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
    return [(PART_CODE[part], spans(rank, rows[region == code])) for code, part in COMPUTE_PART.items()]


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


# When did the device of a rank run work of other ranks of the job?
#
# Several ranks can share one device (a test on one GPU, small stages of a pipeline). Work that a rank launched long
# ago is then queued while kernels of another rank run, which no single trace shows. The recorder's telemetry gives the
# device's uuid; ranks without telemetry are assumed to have a device each.


def _others_on_device(shared: AlignedRun) -> tuple[Intervals, ...]:
    out = [EMPTY] * len(shared.run.ranks)
    for members in sharing_ranks(shared):
        busy = {index: _busy(shared, index) for index in members}
        for index in members:
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
    Cause.COPY: "host_sync",
    Cause.AFTER_SYNC: "host_sync",
    Cause.SLOW_CALL: "launch_gap",
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
        return self.idle is not None

    def ns(self, part: str) -> Int64s:
        return self.part_ns[:, PART_CODE[part]]


def budgets(shared: AlignedRun) -> tuple[RankBudget | None, ...]:
    """Return the budget of every rank.

    None for a rank whose trace holds neither steps nor work, or that has no complete step although other ranks do.
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
    if rank.device_unseen:  # the host launched what it ran: when the device computed is unknown
        before, after = [*_own_layers(rank), *_unknown_compute(before)], _unknown_compute(after)
    spent = _rows(label_ns(painted([*before, *comm, *after], cuts), cuts, _UNMATCHED_COMM + 1), periods)
    no_causes = np.zeros((len(periods), len(Cause)), np.int64)
    part_ns = _with_unmatched(spent)
    part_ns[:, PART_CODE["unknown"]] += periods.dur_ns - part_ns.sum(axis=1)
    return RankBudget(periods, part_ns, no_causes, spent[:, _UNMATCHED_COMM], None, None)


def _own_layers(rank: Rank) -> Layers:
    """Return what the host did itself next to a device that was not recorded: operators on its memory, and copies."""
    copies = rank.rows_named(lambda name: "Memcpy" in name, EventKind.RUNTIME)
    copies = copies[rank.trace["dur_ns"][copies] >= _BLOCKING_COPY_NS]
    # without any recorded call, operators that launch look like those that compute
    computed = spans(rank, operators_without_calls(rank)) if len(runtime_rows(rank)) else EMPTY
    # a call waits for the device or does the host's own work: which is unknown
    calls = (PART_CODE["unknown"], spans(rank, runtime_rows(rank)))
    return [(PART_CODE["other_compute"], computed), (PART_CODE["copy"], spans(rank, copies)), calls]


def _unknown_compute(layers: Layers) -> Layers:
    parts = {PART_CODE[part] for part in (*COMPUTE_PART.values(), "host_stall")} - {PART_CODE["data_loading"]}
    return [(PART_CODE["unknown"] if part in parts else part, x) for part, x in layers]


def _with_unmatched(time_ns: Int64s) -> Int64s:
    out = time_ns[:, : len(PARTS)].copy()
    out[:, PART_CODE["unknown"]] += time_ns[:, _UNMATCHED_COMM]
    return out


def _rows(between_cuts: Int64s, periods: StepPeriods) -> Int64s:
    return between_cuts[np.searchsorted(periods.cuts, periods.start_ns)]


def _union(start: Int64s, end: Int64s, keep: npt.NDArray[np.bool_]) -> Intervals:
    return union(start[keep], end[keep])


# The budget without the profiler.

# How does the budget of the window become that of the mean training step?
#
# The window's ordinary steps, without the profiler's overhead, are the ordinary step. Recurring time of other steps is
# added, by the regions of the step log:
#
#     data_loading, loader_start                                         data_loading
#     checkpoint, evaluation, garbage_collection, compilation, others    host_stall
#     time outside every region                                          host_stall; exposed_transfer where such steps
#                                                                        have more collectives than the others
#     another rank is busy with any of these                             wait
#     forward, backward or optimizer take longer                         their part; on a device all parts in
#     proportion

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_PART_OF_WORK = {
    FORWARD: "forward",
    BACKWARD: "backward",
    GRADIENT_SYNC: "wait",
    OPTIMIZER: "optimizer",
    LR_SCHEDULING: "optimizer",
    CLIPPING: "optimizer",
}


def beyond_window(
    training: TrainingStep, ranks: Sequence[Rank], periods: Sequence[StepPeriods], on_device: Sequence[bool]
) -> list[Row]:
    """Return per rank what the step logs add to its window; ranks without a log get what the others have."""
    return [_beyond(training, *each) for each in zip(ranks, periods, on_device, strict=True)]


def _beyond(training: TrainingStep, rank: Rank, periods: StepPeriods, on_device: bool) -> Row:
    added, spread = _added(training, rank.rank, on_device=on_device)
    ordinary = _ordinary(training, rank, periods)
    return Row(
        # which of the rank's periods are ordinary steps
        ordinary=ordinary,
        # by part: how much longer it takes without the profiler than with it, and what recurs in other steps
        gap_ns=_by_part(_gains(training, rank, periods.of(ordinary)), on_device=on_device),
        added_ns=added,
        # what loading data takes without the profiler against with it; 1 on a device, which hides some of it
        loading_factor=1.0 if on_device else training.loading_factor.get(rank.rank, 1.0),
        # what recurs and is of the same kind as the ordinary step: in proportion to its parts
        spread_ns=spread,
    )


def _gains(training: TrainingStep, rank: Rank, periods: StepPeriods) -> dict[str, float]:
    """Return by region how much longer it takes in ordinary steps than in those profiled ones that stand for the run.

    Against all of the window's where none of those is in the log: a step that was held up is not what the budget has.
    """
    of_step = training.region_gain_ns.get(rank.rank, {})
    step = periods.step[periods.typical]
    numbers = rank.steps.number[step[step != NO_STEP]].tolist()
    chosen = [of_step[n] for n in numbers if n in of_step] or list(of_step.values())
    means = {name: float(np.mean([gains[name] for gains in chosen])) for name in (chosen[0] if chosen else ())}
    return {name: gain for name, gain in means.items() if gain > 0}


def _ordinary(training: TrainingStep, rank: Rank, periods: StepPeriods) -> Mask:
    events = list(training.event_steps.get(rank.rank, ()))
    in_step = periods.step != NO_STEP
    if not in_step.any():
        return np.ones(len(periods), bool)
    known = periods.complete if periods.complete.any() else in_step
    kept = (~np.isin(rank.steps.number[np.maximum(periods.step, 0)], events) | ~in_step) & known
    if kept.any() and not kept[known].all():
        # The host's work at the end of a step is in the device's period of the next.
        kept &= periods.dur_ns <= FAR_LONGER * periods.dur_ns[kept].min()
    return kept if kept.any() else np.ones(len(periods), bool)


def _added(training: TrainingStep, rank: int, *, on_device: bool) -> tuple[Floats, float]:
    recurring = training.recurring
    out = np.zeros(len(PARTS))
    if rank in recurring.ranks:
        at = recurring.ranks.index(rank)
        for cause in recurring.causes:
            out[PART_CODE[_part_of_cause(cause)]] += recurring.rank_ns(cause)[at]
        out[PART_CODE["wait"]] += recurring.waiting_ns()[at]
    else:
        out[PART_CODE["wait"]] += recurring.total_ns - recurring.other_ns
    longer = _by_part(training.work_gain_ns.get(rank, {}), on_device=False)
    if on_device or not longer.sum():
        return out, recurring.other_ns
    return out + longer * (recurring.other_ns / longer.sum()), 0.0


def _part_of_cause(cause: str) -> str:
    if cause == COMMUNICATION:
        return "exposed_transfer"
    return "data_loading" if cause in DATA_CAUSES else "host_stall"


def _by_part(by_region_ns: dict[str, float], *, on_device: bool) -> Floats:
    out = np.zeros(len(PARTS))
    for region, time_ns in by_region_ns.items():
        work = _PART_OF_WORK.get(region)
        part = _part_of_cause(region) if work is None else "launch_gap" if on_device else work
        out[PART_CODE[part]] += time_ns
    return out


# shares of a step below this are not worth a warning
_MIN_SHARE_FOR_WARNING = 0.02

# A rank's step as entries: the parts that are not idle, communication that no rank matches, idle time by cause.
_UNMATCHED = len(PARTS)
_FIRST_CAUSE = _UNMATCHED + 1
_NUM_ENTRIES = _FIRST_CAUSE + len(Cause)
_WAITS = (PART_CODE["wait"], PART_CODE["pipeline_bubble"], _UNMATCHED)


def _causes(*causes: Cause) -> tuple[int, ...]:
    return tuple(_FIRST_CAUSE + cause for cause in causes)


_DEVICE_ORDER = (
    _causes(Cause.PROFILER),
    _causes(Cause.LAUNCH, Cause.SLOW_CALL),
    _causes(Cause.SYNC, Cause.COPY, Cause.AFTER_SYNC, Cause.STALL, Cause.GC, Cause.ALLOCATOR, Cause.DATA,
            Cause.OTHER_STREAM, Cause.QUEUED, Cause.UNKNOWN),
    (*_WAITS, *_causes(Cause.SHARED)),
    tuple(range(_NUM_ENTRIES)),
)  # fmt: skip
_OPERATORS = tuple(PART_CODE[part] for part in ("forward", "backward", "optimizer", "other_compute", "unknown"))
_HOST_ORDER = (
    _OPERATORS,
    _WAITS,
    tuple(PART_CODE[part] for part in ("data_loading", "host_stall")),
    tuple(range(_NUM_ENTRIES)),
)
# what a device idles for where the step log has a part, and no gap of the device shows it
_CAUSE_OF_LOGGED = ((Cause.DATA, "data_loading"), (Cause.STALL, "host_stall"), (Cause.LAUNCH, "launch_gap"))
# of a host's operators is their own time, however much recording costs: the rest of the excess is elsewhere
_MIN_OWN_SHARE = 0.3


@dataclass(frozen=True, eq=False, repr=False)
class StepBudget(ArrayRecord):
    """What a step of the run consists of. Parts sum to the unprofiled step where known, else to the profiled one."""

    profiled_ns: float
    #: the mean training step
    unprofiled_ns: float | None
    #: the unprofiled step in which nothing recurs that the window's steps do not have
    ordinary_ns: float | None
    #: in the order of `PARTS`, zeros included
    parts: tuple[Row, ...]
    #: idle device time per step by cause, mean over ranks with a device, the profiler's overhead subtracted
    idle_ns: dict[str, float]
    #: one row per rank with a budget, one column per part; each row sums to the step
    rank_part_ns: Floats
    #: within `unknown`: exposed communication that no other rank matches
    unmatched_ns: float
    warnings: tuple[str, ...]

    @property
    def step_ns(self) -> float:
        return self.unprofiled_ns if self.unprofiled_ns is not None else self.profiled_ns

    @property
    def overhead_pct(self) -> float | None:
        """Return by how much the profiler lengthened the step, 0 where it was not longer, None where unknown."""
        return None if not self.ordinary_ns else max(0.0, 100 * (self.profiled_ns / self.ordinary_ns - 1))

    def ns(self, part: str) -> float:
        return self.parts[PART_CODE[part]].ns_per_step


def unprofiled_step_ns(run: Run, given_ns: int | None = None) -> int | None:
    """Return the step's time without the profiler: as given, else from the run, else None.

    The run's description has the median of its steps. Where long steps recur their mean is taken from the step logs.
    """
    said_ns = given_ns
    if given_ns is None:
        logged = run.unprofiled
        described_ns = ns_of_ms(run.description.get("unprofiled_step_ms"))
        said_ns = logged.mean_ns if logged and logged.uneven else described_ns
    return said_ns if said_ns is not None and said_ns > 0 else None


def step_budget(
    budgets: Sequence[RankBudget | None],
    *,
    unprofiled_ns: int | None = None,
    beyond: Sequence[Row] | None = None,
    whole: str = "step",
) -> StepBudget | None:
    """Return the step of the run from the typical steps of its ranks, None where no rank has any.

    `whole` is what the budget is of, in words: without steps it is the window.

    `beyond` is what the step logs add to the window, one per rank that has a budget: then `unprofiled_ns` is the
    ordinary step.
    """
    known = [b for b in budgets if b is not None]
    if beyond is not None:
        known = [_of_periods(b, x.ordinary) for b, x in zip(known, beyond, strict=True)]
    profiled_ns = profiled_step_ns([b.periods for b in known])
    if profiled_ns is None:
        return None
    ordinary_ns = unprofiled_ns
    before = np.array([_entries(b, even=ordinary_ns is None) for b in known])
    after = before
    if ordinary_ns is not None:
        after = _with_loading_as_logged(before, beyond)
        orders = [_DEVICE_ORDER if b.on_device else _HOST_ORDER for b in known]
        gaps = [None] * len(known) if beyond is None else [b.gap_ns for b in beyond]
        each = zip(after, orders, gaps, strict=True)
        after = np.array([_corrected(entries, order, ordinary_ns, gap) for entries, order, gap in each])
    parts, added = _folded(after), _without_profiler_added(_folded(after), beyond)
    return StepBudget(
        profiled_ns=profiled_ns,
        unprofiled_ns=None if ordinary_ns is None else ordinary_ns + float(added.sum(axis=1).mean()),
        ordinary_ns=ordinary_ns,
        parts=_part_times((parts + added).mean(axis=0), _folded(before).mean(axis=0), added.mean(axis=0)),
        idle_ns=_idle(known, after, added),
        rank_part_ns=parts + added,
        unmatched_ns=float(after[:, _UNMATCHED].mean()),
        warnings=tuple(_warnings(before, after, profiled_ns, ordinary_ns, whole=whole)),
    )


def _with_loading_as_logged(entries: Floats, beyond: Sequence[Row] | None) -> Floats:
    out = entries.copy()
    if beyond is not None:
        out[:, PART_CODE["data_loading"]] *= [b.loading_factor for b in beyond]
    return out


def _without_profiler_added(parts: Floats, beyond: Sequence[Row] | None) -> Floats:
    if beyond is None:
        return np.zeros_like(parts)
    return np.array([b.added_ns + b.spread_ns * row / row.sum() for row, b in zip(parts, beyond, strict=True)])


def _entries(budget: RankBudget, *, even: bool) -> Floats:
    """Return the mean of a rank's typical steps, brought to its median period; to the mean period where long steps
    recur, unless the step has to be `even`.
    """
    typical = budget.periods.typical
    causes = budget.cause_ns[typical].mean(axis=0)
    unmatched = budget.unmatched_comm_ns[typical].mean()
    parts = budget.part_ns[typical].mean(axis=0)
    for cause, part in PART_OF_CAUSE.items():
        parts[PART_CODE[part]] -= causes[cause]
    parts[PART_CODE["unknown"]] -= unmatched
    entries = np.concatenate((np.maximum(parts, 0), [unmatched], causes))
    to_ns = budget.periods.mean_ns if budget.periods.uneven and not even else budget.periods.median_ns
    return entries * (to_ns / entries.sum())


def _of_periods(budget: RankBudget, kept: Mask) -> RankBudget:
    return replace(
        budget,
        periods=budget.periods.of(kept),
        part_ns=budget.part_ns[kept],
        cause_ns=budget.cause_ns[kept],
        unmatched_comm_ns=budget.unmatched_comm_ns[kept],
    )


def _corrected(
    entries: Floats, order: tuple[tuple[int, ...], ...], step_ns: float, gap_ns: Floats | None = None
) -> Floats:
    """Return the entries that sum to the unprofiled step. `gap_ns` is, by part, what takes longer in it by the logs."""
    out = entries.copy()
    excess = float(out.sum()) - step_ns
    if excess < 0:
        if gap_ns is not None and gap_ns.sum() > 0:
            told = gap_ns * min(1.0, -excess / gap_ns.sum())
            excess += told.sum()
            for cause, part in _CAUSE_OF_LOGGED if order is _DEVICE_ORDER else ():
                out[_FIRST_CAUSE + cause] += told[PART_CODE[part]]
                told[PART_CODE[part]] = 0.0
            out[: len(PARTS)] += told
        out[_FIRST_CAUSE + Cause.UNKNOWN if order is _DEVICE_ORDER else PART_CODE["unknown"]] -= excess
        return out
    for line in order:
        there = float(out[list(line)].sum())
        taken = min(excess, there * (1 - _MIN_OWN_SHARE) if line is _OPERATORS else there)
        if taken > 0:
            out[list(line)] *= 1 - taken / there
            excess -= taken
    return out


def _folded(entries: Floats) -> Floats:
    out = entries[:, : len(PARTS)].copy()
    out[:, PART_CODE["unknown"]] += entries[:, _UNMATCHED]
    for cause, part in PART_OF_CAUSE.items():
        out[:, PART_CODE[part]] += entries[:, _FIRST_CAUSE + cause]
    return out


def _part_times(parts: Floats, profiled: Floats, recurring: Floats) -> tuple[Row, ...]:
    whole = float(parts.sum())
    return tuple(
        Row(
            part=name,
            ns_per_step=float(after),
            pct=100 * float(after) / whole,
            profiled_ns=float(before),
            correction_ns=float(after) - float(more) - float(before),
            recurring_ns=float(more),
        )
        for name, after, before, more in zip(PARTS, parts, profiled, recurring, strict=True)
    )


def _idle(budgets: Sequence[RankBudget], entries: Floats, added: Floats) -> dict[str, float]:
    which = [b.on_device for b in budgets]
    if not any(which):
        return {}
    mean = entries[which, _FIRST_CAUSE:].mean(axis=0)
    for cause, part in _CAUSE_OF_LOGGED:
        mean[cause] += added[which, PART_CODE[part]].mean()
    return {CAUSE_NAMES[cause]: float(mean[cause]) for cause in Cause if mean[cause] > 0}


def _warnings(
    before: Floats, after: Floats, profiled_ns: float, unprofiled_ns: float | None, *, whole: str
) -> list[str]:
    lines = []
    step_ns = unprofiled_ns or profiled_ns
    if unprofiled_ns is None:
        lines.append(
            f"unprofiled step time unknown: the {whole} and its idle time include profiler "
            "overhead; give --unprofiled-step-ms, or record with stepscope"
        )
    elif (recorded_ns := float(before.sum(axis=1).mean())) < unprofiled_ns:
        grown = after - before
        unknown = float(grown[:, [PART_CODE["unknown"], _FIRST_CAUSE + Cause.UNKNOWN]].sum(axis=1).mean())
        where = "the difference is in `unknown`"
        if unknown < 0.5 * (unprofiled_ns - recorded_ns):
            where = "distributed over the parts by the step log"
        lines.append(
            f"the step took {ms(unprofiled_ns):.2f} ms without the profiler and {ms(recorded_ns):.2f} ms with it: "
            f"{where}, no profiler overhead detected"
        )
    busy = [code for code in range(_UNMATCHED) if code not in _WAITS]
    shrunk = float((before[:, busy] - after[:, busy]).sum(axis=1).mean())
    if unprofiled_ns is not None and shrunk > _MIN_SHARE_FOR_WARNING * step_ns:
        lines.append(
            f"times are scaled to the unprofiled step: {ms(shrunk):.2f} ms per step subtracted from compute and "
            "communication, which ran slower while profiled"
        )
    unmatched = float(after[:, _UNMATCHED].mean())
    if unmatched > _MIN_SHARE_FOR_WARNING * step_ns:
        lines.append(
            f"{ms(unmatched):.2f} ms per step of exposed communication match no other rank's: waiting and transfer "
            "cannot be separated and count as `unknown`"
        )
    return lines
