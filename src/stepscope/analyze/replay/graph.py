"""The recorded steps of all ranks as one graph, and when everything in it would run.

Nodes take time, edges make one node wait for the end of another. Each item of a rank's program becomes

    host     the host's time before the launch
    arrival  the operation could start (takes no time)
    device   the operation itself

and each collective of several ranks a `meeting` that waits for all arrivals. A repeated program lays its steps end
to end several times, so that a change shows in the steady state and not in how the window happened to begin.
"""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import host_compute
from stepscope.analyze.host_time import Activities, HostParts, blocking_calls, data_loading, host_parts, stalling
from stepscope.intervals import EMPTY, Intervals, subtract, union, union_of
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.stats.robust import among, distinct, numbered, quantiles
from stepscope.trace.scanner import WaitGraph
from stepscope.trace.table import EventKind, Int64s
from stepscope.units import NS_PER_US

# What does each rank do, in the order in which its host issues it, and what must each item wait for?
#
# The recorded steps as a dependency graph. One item per launched device operation, in launch order:
#
#     host:    item i is launched after item i-1 and the host's own time between them (less blocked time)
#     sync:    ... and after the device operation that a synchronisation in between waited for
#     device:  item i starts after its launch, its predecessor on the stream, and the operations of other streams
#              that a stream-wait before its launch made it wait for; never "when it was recorded to start"
#     ranks:   a matched collective's transfer starts when its last rank has arrived
#
# Gaps of the device are thus consequences, not data, and change when their cause does.

NOTHING = -1
# a synchronisation returns this soon after what it waited for
_SAME_MOMENT_NS = 50 * NS_PER_US
_MAX_IN_FLIGHT = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Program(ArrayRecord):
    """One rank's recorded steps, item by item in launch order. References are item indices, NOTHING for none."""

    #: row in the rank's DeviceWork (or Collectives, on a CPU rank)
    device_index: Int64s
    #: index into the common steps
    step: npt.NDArray[np.int32]
    #: host time between the previous launch and this one, by what the host did
    host: HostParts
    #: host time after the last launch until the last step's end (one item)
    tail: HostParts
    #: on the device; without waiting for a matched collective
    duration_ns: Int64s
    kind: npt.NDArray[np.uint8]
    #: row in the rank's Collectives, NOTHING for other work
    collective: Int64s
    #: index of the stream among those of the rank
    stream: Int64s
    stream_predecessor: Int64s
    #: pairs of an operation and the item of another stream that waits for it, by item: a row of each
    waits: Int64s
    #: operation that the host waited for before launching this one
    released_by: Int64s
    latency_ns: int
    #: by kind: what the device itself takes between two operations of a stream that were both waiting to run
    queued_gap_ns: dict[int, float]
    #: when the first step began, on the shared clock
    begin_ns: int
    #: `(item, other, lag_ns)`: the item cannot start before so long after the end of the other
    also_after: tuple[tuple[int, int, int], ...] = ()
    #: by stream: until when after `begin_ns` it was busy with work from before the window
    backlog_ns: dict[int, int] = field(default_factory=dict)
    #: operation that the host waited for after the last launch, before the last step ended
    tail_released_by: int = NOTHING
    #: of the host's own time before each item, and in one more entry after the last: Python that the profiler does not
    #: stretch; None where that is not known
    python_ns: Int64s | None = None

    def __len__(self) -> int:
        return len(self.device_index)

    def with_host(self, change: Callable[[HostParts], HostParts]) -> "Program":
        return replace(self, host=change(self.host), tail=change(self.tail))

    def with_own_ns(self, own_ns: npt.NDArray[Any]) -> "Program":
        return replace(self, host=replace(self.host, own_ns=np.rint(own_ns).astype(np.int64)))


def host_part_ns(program: Program, part: str) -> float:
    """Return what one part of the host's time takes in all."""
    return float(getattr(program.host, part).sum() + getattr(program.tail, part).sum())


def host_part_scaled(program: Program, part: str, factor: float) -> Program:
    """Return a program in which one part of the host's time takes `factor` times as long."""
    return program.with_host(
        lambda parts: replace(parts, **{part: np.rint(getattr(parts, part) * factor).astype(np.int64)})
    )


_NONE = np.empty(0, np.int64)
NO_WAITS = np.empty((2, 0), np.int64)
_NO_TIME = HostParts(*(np.zeros(1, np.int64) for _ in range(4)))
# of a rank that recorded none of the steps: it takes no part
EMPTY_PROGRAM = Program(
    device_index=_NONE,
    step=np.empty(0, np.int32),
    host=_NO_TIME.part(slice(0)),
    tail=_NO_TIME,
    duration_ns=_NONE,
    kind=np.empty(0, np.uint8),
    collective=_NONE,
    stream=_NONE,
    stream_predecessor=_NONE,
    waits=NO_WAITS,
    released_by=_NONE,
    latency_ns=0,
    queued_gap_ns={},
    begin_ns=0,
)


def device_program(shared: AlignedRun, index: int, numbers: Int64s) -> Program:
    """Return the program of a rank with a device over the steps of these numbers."""
    rank = shared.run.ranks[index]
    work, ts = rank.work, rank.trace["ts_ns"]
    wanted = np.flatnonzero(among(rank.steps.number, numbers))
    if not len(wanted):
        return EMPTY_PROGRAM
    rows = np.flatnonzero((work.launch_row >= 0) & among(work.step, wanted))
    launched = ts[work.launch_row[rows]]
    order = np.lexsort((work.start_ns[rows], launched))
    rows, launched = rows[order], launched[order]
    edges = launch_edges(rank, rows, numbers)
    first_ns = int(edges[0])
    released_by, lag = _releases(rank, rows, numbers)
    parts = host_parts(rank, edges[:-1], edges[1:])
    device, of_device = numbered(work.device[rows])[1], numbered(work.stream[rows])[1]
    stream = numbered(device * (int(of_device.max(initial=0)) + 1) + of_device)[1]
    predecessor, waits = _stream_predecessors(stream), _stream_waits(rank, rows, launched)
    latency = _latency(work.start_ns[rows] - launched)
    duration, collective = work.end_ns - work.start_ns, np.full(len(work), NOTHING, np.int64)
    duration[rank.collectives.device_index] -= np.maximum(shared.wait_ns[index], 0)
    collective[rank.collectives.device_index] = np.arange(len(rank.collectives))
    return Program(
        device_index=rows,
        step=np.searchsorted(numbers, rank.steps.number[work.step[rows]]).astype(np.int32),
        host=parts.part(slice(0, len(rows))).plus_own(lag[:-1]),
        tail=parts.part(slice(len(rows), len(rows) + 1)).plus_own(lag[-1:]),
        duration_ns=duration[rows],
        kind=work.kind[rows],
        collective=collective[rows],
        stream=stream,
        stream_predecessor=predecessor,
        waits=waits,
        released_by=released_by[:-1],
        latency_ns=latency,
        queued_gap_ns=_queued_gaps(rank, rows, launched + latency, predecessor, waits),
        begin_ns=int(shared.clocks.shared(index, np.array([first_ns]))[0]),
        backlog_ns=_backlog(rank, rows, stream, first_ns),
        tail_released_by=int(released_by[-1]),
    )


def _queued_gaps(rank: Rank, rows: Int64s, launched: Int64s, predecessor: Int64s, waits: Int64s) -> dict[int, float]:
    """Return the mean gap before operations that the host had launched in time, by kind.

    It is the device's turnaround of a few microseconds, and more where other processes share it. The mean over the run
    is used instead of single recorded gaps.
    """
    work = rank.work
    start, end, kind = work.start_ns[rows], work.end_ns[rows], work.kind[rows]
    ready = np.where(predecessor >= 0, end[predecessor], np.iinfo(np.int64).min)
    other, item = waits
    np.maximum.at(ready, item, end[other])
    queued = (predecessor >= 0) & (launched <= ready) & (start >= ready)
    gaps = start - ready
    return {int(k): float(gaps[queued & (kind == k)].mean()) for k in distinct(kind) if (queued & (kind == k)).any()}


def _backlog(rank: Rank, rows: Int64s, stream: Int64s, first_ns: int) -> dict[int, int]:
    work = rank.work
    older = np.flatnonzero(work.launch_row < 0)
    out = {}
    for s in distinct(stream):
        item = rows[np.flatnonzero(stream == s)[0]]
        same = older[(work.stream[older] == work.stream[item]) & (work.device[older] == work.device[item])]
        if len(same):
            out[int(s)] = max(0, int(work.end_ns[same].max()) - first_ns)
    return out


def _latency(delays_ns: Int64s) -> int:
    short = int(quantiles(delays_ns, 0.05)) if len(delays_ns) else 0
    return short if 0 < short <= 10 * NS_PER_US else 5 * NS_PER_US


def _stream_predecessors(stream: Int64s) -> Int64s:
    out = np.full(len(stream), NOTHING, np.int64)
    order = np.argsort(stream, kind="stable")
    same = stream[order[1:]] == stream[order[:-1]]
    out[order[1:][same]] = order[:-1][same]
    return out


def launch_edges(rank: Rank, rows: Int64s, numbers: Int64s) -> Int64s:
    """Return the beginning of the first step, when the host launched each row of its work, and the end of the last
    step: the host's time before an item is between two of them.
    """
    wanted = np.flatnonzero(among(rank.steps.number, numbers))
    launched = rank.trace["ts_ns"][rank.work.launch_row[rows]]
    first_ns, last_ns = int(rank.steps.start_ns[wanted[0]]), int(rank.steps.end_ns[wanted[-1]])
    return np.concatenate(([first_ns], launched, [max(last_ns, int(launched[-1]) if len(launched) else last_ns)]))


def _releases(
    rank: Rank, rows: Int64s, numbers: Int64s, *, without_calls: Int64s | None = None
) -> tuple[Int64s, Int64s]:
    """Return for each item the operation that the host waited for just before it, and what it took to return; one
    more for waiting between the last item and the end of the last step. Calls of the rows `without_calls` are left out.

    Which operation that was is read off the clock: the last one to end before the call returned. The call of a pageable
    copy returns once the data is staged: where that is shortly before the copy ends, it waited for the copy.
    """
    launch_row, start_ns, end_ns = rank.work.launch_row[rows], rank.work.start_ns[rows], rank.work.end_ns[rows]
    launched = rank.trace["ts_ns"][launch_row]
    last_ns = int(rank.steps.end_ns[among(rank.steps.number, numbers)].max())
    released_by = np.full(len(launched) + 1, NOTHING, np.int64)
    lag = np.zeros(len(launched) + 1, np.int64)
    starts, ends_, calls = blocking_calls(rank, synchronisations_only=True)
    kept = np.ones(len(calls), bool) if without_calls is None else ~among(calls, without_calls)
    kept &= starts < last_ns
    starts, ends_, calls = starts[kept], ends_[kept], calls[kept]
    before = np.searchsorted(launched, starts, side="right")
    after = np.maximum(np.searchsorted(launched, ends_, side="left"), before)  # a copy's call may take 0 ns
    each = zip(*(column.tolist() for column in (starts, ends_, calls, before, after)), strict=True)
    for start, end, call, asked, following in each:
        if not asked:
            continue
        low = max(0, asked - _MAX_IN_FLIGHT)
        ends = end_ns[low:asked]
        fits = np.flatnonzero((ends > start) & (ends <= end + _SAME_MOMENT_NS))
        if len(fits):
            release = low + int(fits[np.argmax(ends[fits])])
            released_by[following] = release
            lag[following] += max(0, end - int(end_ns[release]))
        elif launch_row[asked - 1] == call and 2 * end > start_ns[asked - 1] + end_ns[asked - 1]:
            released_by[following] = asked - 1
    return released_by, lag


def without_calls(program: Program, rank: Rank, numbers: Int64s, calls: Int64s) -> Program:
    """Return a program in which the host does not wait in the synchronisations of these rows."""
    if not len(program) or not among(blocking_calls(rank, synchronisations_only=True)[2], calls).any():
        return program
    before, lag = _releases(rank, program.device_index, numbers)
    after, less = _releases(rank, program.device_index, numbers, without_calls=calls)
    released_by, tail, host = program.released_by, program.tail_released_by, program.host
    return replace(
        program,
        host=replace(host, own_ns=np.maximum(host.own_ns - (lag - less)[:-1], 0)),
        released_by=np.where(released_by == before[:-1], after[:-1], released_by),
        tail_released_by=int(after[-1]) if tail == int(before[-1]) else tail,
    )


def _stream_waits(rank: Rank, rows: Int64s, launched: Int64s) -> Int64s:
    """Return which operations of other streams the items wait for.

    A trace records that the host made one stream wait, not which for which. The first operation launched on a
    stream after such a call waits for the latest operation of each other stream that was launched before the call
    and had ended when it started.
    """
    asked = np.sort(rank.trace["ts_ns"][rank.rows_named(lambda s: "StreamWaitEvent" in s, EventKind.RUNTIME)])
    start, end, stream = rank.work.start_ns[rows], rank.work.end_ns[rows], rank.work.stream[rows]
    streams = distinct(stream)
    if len(streams) < 2 or not len(asked):
        return NO_WAITS
    pairs = [NO_WAITS]
    latest_call = np.searchsorted(asked, launched, side="right") - 1
    members = {s: np.flatnonzero(stream == s) for s in streams.tolist()}
    launches = {s: launched[items] for s, items in members.items()}
    ended = {s: np.maximum.accumulate(end[items]) for s, items in members.items()}
    for own, items in members.items():
        call = latest_call[items]
        fresh = items[(call >= 0) & (np.concatenate(([-1], call[:-1])) < call)]
        moment, begun = asked[latest_call[fresh]], start[fresh]
        for other, theirs in members.items():
            if other == own:
                continue
            by_launch = np.searchsorted(launches[other], moment, side="right")
            at = np.minimum(by_launch, np.searchsorted(ended[other], begun, side="right")) - 1
            pairs.append(np.stack((theirs[at], fresh))[:, at >= 0])
    return by_item(np.concatenate(pairs, axis=1))


def by_item(waits: Int64s) -> Int64s:
    """Return pairs of an operation and the item that waits for it in the order of the items."""
    return waits[:, np.argsort(waits[1], kind="stable")]


# Programs of ranks without a device: gloo's threads take the place of the device.
#
# Each collective is an item: the host issues it, one of gloo's threads carries it out. The host's own time is the time
# between two calls while not waiting; it waits where no operator runs and nothing but a collective is active. A rank
# without collectives (one process on a CPU) has its steps' ends as items.


def host_program(shared: AlignedRun, index: int, numbers: Int64s) -> Program:
    """Return the program of a CPU rank over the steps of these numbers."""
    rank = shared.run.ranks[index]
    c = rank.collectives
    wanted = np.flatnonzero(among(rank.steps.number, numbers))
    if not len(wanted):
        return EMPTY_PROGRAM
    rows = np.flatnonzero(among(c.step, wanted) & (c.issue_ns > np.iinfo(np.int64).min))
    rows = rows[np.argsort(c.issue_ns[rows], kind="stable")]
    if not len(rows):
        return _alone(shared, index, wanted, numbers) if len(host_compute(rank)) else EMPTY_PROGRAM
    edges = issue_edges(rank, rows, numbers)
    first_ns = int(edges[0])
    did = host_activities(rank)
    parts = did.parts(edges[:-1], edges[1:])
    released_by = _released_by(did.blocked, c.end_ns[rows], edges)
    lane = _lanes(c.start_ns[rows], c.end_ns[rows])
    return Program(
        device_index=rows,
        step=np.searchsorted(numbers, rank.steps.number[c.step[rows]]).astype(np.int32),
        host=parts.part(slice(0, len(rows))),
        tail=parts.part(slice(len(rows), len(rows) + 1)),
        duration_ns=(c.end_ns - c.start_ns)[rows] - np.maximum(shared.wait_ns[index][rows], 0),
        kind=np.full(len(rows), EventKind.COMM_KERNEL, np.uint8),
        collective=rows,
        stream=lane,
        stream_predecessor=_stream_predecessors(lane),
        waits=NO_WAITS,
        released_by=released_by[:-1],
        latency_ns=0,
        queued_gap_ns={},
        begin_ns=int(shared.clocks.shared(index, np.array([first_ns]))[0]),
        backlog_ns={},
        tail_released_by=int(released_by[-1]),
    )


def _alone(shared: AlignedRun, index: int, wanted: Int64s, numbers: Int64s) -> Program:
    rank = shared.run.ranks[index]
    edges = step_edges(rank, numbers)
    parts = host_activities(rank, alone=True).parts(edges[:-1], edges[1:])
    marks = np.full(len(wanted), NOTHING, np.int64)
    return replace(
        EMPTY_PROGRAM,
        device_index=marks,
        step=np.searchsorted(numbers, rank.steps.number[wanted]).astype(np.int32),
        host=parts,
        duration_ns=np.zeros(len(wanted), np.int64),
        kind=np.full(len(wanted), EventKind.COMM_KERNEL, np.uint8),
        collective=marks,
        stream=np.zeros(len(wanted), np.int64),
        stream_predecessor=_stream_predecessors(np.zeros(len(wanted), np.int64)),
        released_by=marks,
        begin_ns=int(shared.clocks.shared(index, edges[:1])[0]),
    )


def issue_edges(rank: Rank, rows: Int64s, numbers: Int64s) -> Int64s:
    """Return the beginning of the first step, when the host issued each collective, and the end of the last step."""
    steps = np.flatnonzero(among(rank.steps.number, numbers))
    first_ns, last_ns = int(rank.steps.start_ns[steps[0]]), int(rank.steps.end_ns[steps[-1]])
    return np.maximum.accumulate(np.concatenate(([first_ns], rank.collectives.issue_ns[rows], [last_ns])))


def step_edges(rank: Rank, numbers: Int64s) -> Int64s:
    """Return the beginning of the first step and the end of each."""
    steps = np.flatnonzero(among(rank.steps.number, numbers))
    return np.concatenate((rank.steps.start_ns[steps][:1], rank.steps.end_ns[steps]))


def host_activities(rank: Rank, *, alone: bool = False) -> Activities:
    """Return when the host of a rank without a device waited for a collective, loaded data or stalled."""
    collectives = EMPTY if alone else union(rank.collectives.start_ns, rank.collectives.end_ns)
    waiting = subtract(collectives, host_compute(rank))
    data = subtract(data_loading(rank), waiting)
    return Activities(waiting, data, EMPTY, subtract(stalling(rank), union_of(waiting, data)))


def _lanes(start: Int64s, end: Int64s) -> Int64s:
    """Return which of gloo's threads ran each collective, by overlap: collectives of one thread do not overlap.

    Of the free threads the one that became free last takes it: that is the one it may have waited for.
    """
    free_ns: list[int] = []
    out = np.zeros(len(start), np.int64)
    for item in np.argsort(start, kind="stable").tolist():
        free = [lane for lane, until in enumerate(free_ns) if until <= start[item]]
        lane = max(free, key=free_ns.__getitem__) if free else len(free_ns)
        if not free:
            free_ns.append(0)
        free_ns[lane], out[item] = int(end[item]), lane
    return out


def _released_by(waiting: Intervals, end: Int64s, edges: Int64s) -> Int64s:
    """Return for each item the last collective that ended while the host waited before issuing it; one more for
    waiting after the last item.

    There is always a short gap between two operators; waiting takes longer.
    """
    out = np.full(len(end) + 1, NOTHING, np.int64)
    waits = np.flatnonzero(waiting.end - waiting.start >= 200 * NS_PER_US)
    asked = np.searchsorted(edges, waiting.end[waits], side="left") - 1
    for item, wait in zip(asked.tolist(), waits.tolist(), strict=True):
        if 0 <= item <= len(end):
            first = max(0, item - _MAX_IN_FLIGHT)
            ends = end[first:item]
            done = np.flatnonzero((ends > waiting.start[wait]) & (ends <= waiting.end[wait]))
            if len(done):
                out[item] = first + int(done[np.argmax(ends[done])])
    return out


Floats = npt.NDArray[np.float64]
# one collective of several ranks: `(rank index, item)` of each member
Meeting = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Wiring(ArrayRecord):
    """What waits for what. Changes that only shorten or lengthen things share it."""

    #: edges into node n are `first_edge[n]:first_edge[n + 1]`
    first_edge: Int64s
    edge_from: Int64s
    edge_lag_ns: Floats
    #: the same in the compiled module
    waits: WaitGraph


@dataclass(frozen=True, eq=False, repr=False)
class Graph(ArrayRecord):
    """Nodes and what they wait for, with the nodes of each rank's items."""

    duration_ns: Floats
    #: the part of a node's duration that the profiler stretches: the host's own work
    profiled_ns: Floats
    wiring: Wiring
    #: before which a node cannot start: how the recorded window began
    earliest_ns: Floats
    host: tuple[Int64s, ...]
    arrival: tuple[Int64s, ...]
    device: tuple[Int64s, ...]
    #: per rank and item, counted on through the repetitions
    step: tuple[npt.NDArray[np.int32], ...]
    num_steps: int
    repeats: int

    def __len__(self) -> int:
        return len(self.duration_ns)


class CircularWaits(Exception):
    """The recorded dependencies wait for each other in a circle, so the run cannot be replayed."""


def build_graph(
    programs: Sequence[Program],
    meetings: Sequence[Meeting],
    *,
    num_steps: int,
    repeats: int = 1,
    from_rest: bool = False,
) -> Graph:
    """Return the graph of these programs, their steps laid end to end `repeats` times.

    `from_rest` begins with all hosts at once and idle devices, in place of the recorded beginning. A host that was
    far ahead when the window began stays ahead for many steps, which would pass for a faster steady state.
    """
    within, onwards = _Edges(), _Edges()
    nodes = _Nodes(programs, len(meetings), repeats)
    for rank, program in enumerate(programs):
        if len(program):
            _rank_edges(within, nodes, rank, program)
            if repeats > 1:
                _join_repetitions(onwards, nodes, rank, program)
    _meeting_edges(within, nodes, meetings)
    both = within.repeated(repeats, nodes.of_one), onwards.repeated(repeats - 1, nodes.of_one)
    source, target, lag_ns = (np.concatenate(columns) for columns in zip(*both, strict=True))
    order = np.argsort(target, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=nodes.count)))).astype(np.int64)
    duration, profiled = nodes.durations(programs, repeats)
    return Graph(
        duration_ns=duration,
        profiled_ns=profiled,
        wiring=_wiring(first, source[order], lag_ns[order]),
        earliest_ns=np.zeros(nodes.count) if from_rest else _beginning(programs, nodes),
        host=tuple(np.concatenate([nodes.host(r, c) for c in range(repeats)]) for r in range(len(programs))),
        arrival=tuple(np.concatenate([nodes.arrival(r, c) for c in range(repeats)]) for r in range(len(programs))),
        device=tuple(np.concatenate([nodes.device(r, c) for c in range(repeats)]) for r in range(len(programs))),
        step=tuple(np.concatenate([p.step + c * num_steps for c in range(repeats)]) for p in programs),
        num_steps=num_steps * repeats,
        repeats=repeats,
    )


def with_durations(graph: Graph, programs: Sequence[Program], num_meetings: int) -> Graph:
    """Return the graph of programs that take other times but wait for the same things."""
    duration, profiled = _Nodes(programs, num_meetings, graph.repeats).durations(programs, graph.repeats)
    return replace(graph, duration_ns=duration, profiled_ns=profiled)


def end_times(graph: Graph, duration_ns: Floats | None = None) -> Floats:
    """Return when each node ends if it starts as soon as everything it waits for has ended."""
    return graph.wiring.waits.ends(graph.earliest_ns, graph.duration_ns if duration_ns is None else duration_ns)


def step_ends(graph: Graph, end_ns: Floats) -> Floats:
    """Return per rank and step when the device had done all work launched in it."""
    out = np.zeros((len(graph.device), graph.num_steps))
    for rank, (nodes, step) in enumerate(zip(graph.device, graph.step, strict=True)):
        np.maximum.at(out[rank], step, end_ns[nodes])
    return np.maximum.accumulate(out, axis=1)


def steady_period_ns(graph: Graph, end_ns: Floats) -> float:
    """Return the time per step over the second half of the steps, mean over the ranks that do anything."""
    ends = step_ends(graph, end_ns)[[len(nodes) > 0 for nodes in graph.device]]
    half, last = steady_steps(graph)
    return float((ends[:, last] - ends[:, half]).mean() / (last - half)) if last else float(ends.mean())


def steady_steps(graph: Graph) -> tuple[int, int]:
    """Return the steps between whose ends a run is steady: the second half."""
    last = graph.num_steps - 1
    return max(0, last - max(1, (last + 1) // 2)), last


def _stretched_ns(program: Program) -> Int64s:
    own = np.append(program.host.own_ns, program.tail.own_ns)
    return own if program.python_ns is None else own - np.minimum(program.python_ns, own)


class _Nodes:
    def __init__(self, programs: Sequence[Program], num_meetings: int, repeats: int) -> None:
        self._sizes = [len(p) for p in programs]
        starts, at = [], 0
        for _ in range(repeats):
            row = []
            for size in self._sizes:
                row.append(at)
                at += 3 * size
            starts.append((row, at))
            at += num_meetings
        self._starts = starts
        self.count = at
        # nodes of one repetition: as far apart are those that stand for the same
        self.of_one = at // max(repeats, 1)

    def host(self, rank: int, copy: int) -> Int64s:
        first = self._starts[copy][0][rank]
        return np.arange(first, first + self._sizes[rank])

    def arrival(self, rank: int, copy: int) -> Int64s:
        return self.host(rank, copy) + self._sizes[rank]

    def device(self, rank: int, copy: int) -> Int64s:
        return self.host(rank, copy) + 2 * self._sizes[rank]

    def meeting(self, m: int, copy: int) -> int:
        return self._starts[copy][1] + m

    def durations(self, programs: Sequence[Program], repeats: int) -> tuple[Floats, Floats]:
        out, own = np.zeros(self.count), np.zeros(self.count)
        for rank, program in enumerate(programs):
            total, stretched, size = program.host.total_ns, _stretched_ns(program), self._sizes[rank]
            for copy in range(repeats):
                first = self._starts[copy][0][rank]
                out[first : first + size], own[first : first + size] = total, stretched[:-1]
                out[first + 2 * size : first + 3 * size] = program.duration_ns
                if copy and size:
                    out[first] += program.tail.total_ns[0]
                    own[first] += stretched[-1]
        return out, own


class _Edges:
    def __init__(self) -> None:
        self._from: list[Int64s] = []
        self._to: list[Int64s] = []
        self._lag: list[Floats] = []

    def add(self, source: Int64s, target: Int64s | int, lag_ns: Floats | float = 0.0) -> None:
        many = len(source)
        self._from.append(source)
        self._to.append(target if isinstance(target, np.ndarray) else np.full(many, target, np.int64))
        self._lag.append(lag_ns.astype(float) if isinstance(lag_ns, np.ndarray) else np.full(many, lag_ns, float))

    def repeated(self, times: int, apart: int) -> tuple[Int64s, Int64s, Floats]:
        if not self._from or times < 1:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        shift = apart * np.arange(times)[:, None]
        source, target = np.concatenate(self._from) + shift, np.concatenate(self._to) + shift
        return source.reshape(-1), target.reshape(-1), np.tile(np.concatenate(self._lag), times)


def _meeting_edges(edges: _Edges, nodes: _Nodes, meetings: Sequence[Meeting]) -> None:
    flat = [(rank, item, m) for m, meeting in enumerate(meetings) for rank, item in meeting]
    if not flat:
        return
    rank_of, item_of, meeting_of = np.array(flat, np.int64).T
    for rank in distinct(rank_of).tolist():
        mine = rank_of == rank
        place = nodes.meeting(0, 0) + meeting_of[mine]
        edges.add(nodes.arrival(rank, 0)[item_of[mine]], place)
        edges.add(place, nodes.device(rank, 0)[item_of[mine]])


def _rank_edges(edges: _Edges, nodes: _Nodes, rank: int, program: Program) -> None:
    host, arrival, device = nodes.host(rank, 0), nodes.arrival(rank, 0), nodes.device(rank, 0)
    edges.add(host[:-1], host[1:])
    edges.add(host, arrival, program.latency_ns)
    edges.add(arrival, device)
    has = np.flatnonzero(program.stream_predecessor != NOTHING)
    gap_of = np.zeros(256)
    for kind, gap_ns in program.queued_gap_ns.items():
        gap_of[kind] = gap_ns
    edges.add(device[program.stream_predecessor[has]], arrival[has], gap_of[program.kind[has]])
    released = np.flatnonzero(program.released_by != NOTHING)
    edges.add(device[program.released_by[released]], host[released])
    source, target = program.waits
    edges.add(device[source], arrival[target])
    for item, other, lag_ns in program.also_after:
        edges.add(device[other : other + 1], int(arrival[item]), lag_ns)


def _beginning(programs: Sequence[Program], nodes: _Nodes) -> Floats:
    earliest = np.zeros(nodes.count)
    begin = min((p.begin_ns for p in programs if len(p)), default=0)
    for rank, program in enumerate(programs):
        if not len(program):
            continue
        earliest[nodes.host(rank, 0)[0]] = program.begin_ns - begin
        for stream, busy_ns in program.backlog_ns.items():
            first = int(np.flatnonzero(program.stream == stream)[0])
            earliest[nodes.arrival(rank, 0)[first]] = program.begin_ns - begin + busy_ns
    return earliest


def _join_repetitions(edges: _Edges, nodes: _Nodes, rank: int, program: Program) -> None:
    edges.add(nodes.host(rank, 0)[-1:], nodes.host(rank, 1)[:1])
    if program.tail_released_by != NOTHING:
        edges.add(nodes.device(rank, 0)[program.tail_released_by :][:1], int(nodes.host(rank, 1)[0]))
    followed = np.zeros(len(program), bool)
    followed[program.stream_predecessor[program.stream_predecessor != NOTHING]] = True
    last = np.flatnonzero(~followed)
    first = np.flatnonzero(program.stream_predecessor == NOTHING)
    stream_of_first = {int(program.stream[i]): int(i) for i in first}
    for item in last.tolist():
        successor = stream_of_first[int(program.stream[item])]
        edges.add(nodes.device(rank, 0)[item : item + 1], int(nodes.arrival(rank, 1)[successor]))


def _wiring(first: Int64s, source: Int64s, lag_ns: Floats) -> Wiring:
    waits = WaitGraph(first, source, lag_ns)
    if waits.is_circular:
        count = len(first) - 1
        raise CircularWaits(f"{count - len(waits.order)} of {count} nodes wait in a circle")
    return Wiring(first, source, lag_ns, waits)
