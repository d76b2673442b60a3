"""The recorded steps of all ranks as one graph, and when everything in it would run.

Nodes take time, edges make one node wait for the end of another. Each item of a rank's program becomes

    host     the host's time before the launch
    arrival  the operation could start (takes no time)
    device   the operation itself

and each collective of several ranks a `meeting` that waits for all arrivals. A repeated program lays its steps end
to end several times, so that a change shows in the steady state and not in how the window happened to begin.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.stats.distinct import distinct
from stepscope.trace.scanner.waits import WaitGraph
from stepscope.trace.table import Int64s

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
