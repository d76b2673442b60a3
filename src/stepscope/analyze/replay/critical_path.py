"""What decides the step? The chain of host work, launches, kernels and collectives that nothing could run beside.

Found on the replay: from the end of the last step back through whatever each thing waited for longest. What is not
on it has slack: so much later it could end without the run ending later.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.analyze.ownership import Ownership
from stepscope.analyze.replay.graph import Floats, Graph, Wiring, end_times, steady_steps, step_ends
from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.analyze.replay.removal import recorded_host
from stepscope.analyze.replay.replay import Replay, with_host_factor
from stepscope.analyze.stacks import Line
from stepscope.dataclass import dataclass
from stepscope.run.rank import Rank
from stepscope.stats.robust import median
from stepscope.trace.classify import EventKind
from stepscope.trace.table import NO_STRING, Int64s
from stepscope.units import printable

_MAX_SEGMENTS = 30
_KINDS: dict[int, str] = {
    EventKind.KERNEL: "kernel",
    EventKind.COMM_KERNEL: "collective",
    EventKind.COPY: "copy",
    EventKind.SET: "set",
}

_LAUNCH = ("launch", "latency and gaps between operations")
_PARTS = ("host", "arrival", "device")
_HOST_PARTS = ("own_ns", "data_ns", "allocator_ns", "stall_ns")
_HOST_PARTS_NAMED = ("operators, launches and python", "loading data", "allocating device memory", "stalled")


@dataclass(frozen=True)
class Segment:
    """Time that one thing holds on the critical path."""

    rank: int
    #: host, launch (from a call to its start, or from one operation to the next), kernel, collective, copy, set
    what: str
    name: str
    ns_per_step: float
    pct: float


@dataclass(frozen=True)
class CriticalPath:
    """The path of the steady steps, and how much slack each rank has."""

    #: the largest first
    segments: tuple[Segment, ...]
    ns_per_step: float
    #: time per step by `what`, over the whole path
    what_ns: dict[str, float]
    #: by rank: how much longer its compute could take without delaying the run, median over its kernels
    slack_ns: dict[int, float]


def critical_path(replay: Replay) -> CriticalPath:
    """Return the critical path of a replay, per step."""
    duration, end, begin_ns, steps = _replayed(replay)
    totals = _totals(replay, begin_ns, *_walk(replay.graph, duration, end, begin_ns))
    whole = sum(totals.values()) or 1.0
    segments = [
        Segment(rank, what, name, value / steps, 100 * value / whole)
        for (rank, what, name), value in sorted(totals.items(), key=lambda one: -one[1])[:_MAX_SEGMENTS]
        if value > 0
    ]
    by_what: dict[str, float] = defaultdict(float)
    for (_, what, _), value in totals.items():
        by_what[what] += value / steps
    return CriticalPath(tuple(segments), whole / steps, dict(by_what), _slack(replay, duration, end))


def _replayed(replay: Replay) -> tuple[Floats, Floats, float, int]:
    """Return what each node takes and when it ends, from when on steps are steady, and how many of those there are."""
    graph = replay.graph
    duration = with_host_factor(graph, replay.host_factor)
    end = end_times(graph, duration)
    half, last = steady_steps(graph)
    begin_ns = float(step_ends(graph, end)[:, half].max()) if last else 0.0
    return duration, end, begin_ns, max(last - half, 1)


def critical_lines(replay: Replay, ownership: Sequence[Ownership | None]) -> dict[Line, float]:
    """Return the time on the critical path per step by the user's innermost line, in ns."""
    duration, end, begin_ns, steps = _replayed(replay)
    nodes, start, stop, _ = _walk(replay.graph, duration, end, begin_ns)
    took = np.zeros(len(replay.graph))
    took[nodes] = np.maximum(0.0, stop - np.maximum(start, begin_ns))
    found: dict[Line, float] = defaultdict(float)
    for index, (rank, owned) in enumerate(zip(replay.shared.run.ranks, ownership, strict=True)):
        program = replay.programs[index]
        if owned is None or not len(program):
            continue
        items = np.arange(len(replay.graph.device[index])) % len(program)
        on_device = np.bincount(items, took[replay.graph.device[index]], minlength=len(program))
        by_item = owned.by_work if rank.has_device else owned.by_collective
        by_stack = np.zeros(len(owned.stacks) + 1)
        np.add.at(by_stack, by_item.at(program.device_index).stack, on_device)
        # The host's time before an item is that of the lines which ran then.
        edges, _ = recorded_host(rank, program, replay.steps)
        before = np.bincount(np.arange(len(replay.graph.host[index])) % len(program), took[replay.graph.host[index]])
        passed = np.append(0.0, np.cumsum(before))
        passed = np.append(passed, np.full(max(0, len(edges) - len(passed)), passed[-1]))[: len(edges)]
        host = owned.host
        spent = np.interp(host.end_ns, edges, passed) - np.interp(host.start_ns, edges, passed)
        np.add.at(by_stack, host.owner.stack, spent * host.runs)
        for stack in np.flatnonzero(by_stack[:-1]).tolist():
            if line := owned.stacks.user_line(stack):
                found[line] += float(by_stack[stack]) / steps
    return dict(found)


def _walk(graph: Graph, duration: Floats, end: Floats, begin_ns: float) -> tuple[Int64s, Floats, Floats, Floats]:
    """Return the nodes of the path, when each starts and ends, and the lag between what it waited for and its start."""
    start = end - duration
    source, lag = _held_by(graph.wiring, start, end, begin_ns)
    path, ahead = np.array([np.argmax(end)], np.int64), np.append(source, NOTHING)  # in the last place: of nothing
    while path[-1] != NOTHING:
        path = np.append(path, ahead[path])  # twice as long each time
        ahead = ahead.take(ahead)
    path = path[path != NOTHING]
    return path, start[path], end[path], lag[path]


def _held_by(wiring: Wiring, start: Floats, end: Floats, begin_ns: float) -> tuple[Int64s, Floats]:
    """Return per node that starts after `begin_ns` what it waited for longest, with the lag between; NOTHING for others
    and where it waited for nothing.
    """
    source, lag = np.full(len(start), NOTHING, np.int64), np.zeros(len(start))
    count = np.diff(wiring.first_edge)
    waiting = np.flatnonzero((count > 0) & (start > begin_ns))
    if not len(waiting):
        return source, lag
    count = count[waiting]
    first = np.cumsum(count) - count
    edges = np.arange(int(count.sum())) + np.repeat(wiring.first_edge[waiting] - first, count)
    edge_from, edge_lag = wiring.edge_from[edges], wiring.edge_lag_ns[edges]
    ready = end[edge_from] + edge_lag
    latest = np.maximum.reduceat(ready, first)
    into = np.repeat(np.arange(len(first)), count)
    latest_edges = np.flatnonzero(ready == latest[into])
    into = into[latest_edges]
    binding = latest_edges[np.append(True, into[1:] != into[:-1])]  # the first of those that end last
    held = np.flatnonzero(latest >= start[waiting] - 1)
    waiting, binding = waiting[held], binding[held]
    source[waiting], lag[waiting] = edge_from[binding], edge_lag[binding]
    return source, lag


# rank, kind and name of what a node stands for
Owner = tuple[int, str, str]


def _totals(
    replay: Replay, begin_ns: float, nodes: Int64s, start: Floats, end: Floats, lag: Floats
) -> dict[Owner, float]:
    owners, owner, launch = _owners(replay, nodes)
    named = np.flatnonzero(owner != NOTHING)  # where ranks meet takes no time
    start, end, lag = start[named], end[named], lag[named]
    took = np.maximum(0.0, end - np.maximum(start, begin_ns))
    waited = np.maximum(0.0, np.minimum(lag, start - begin_ns))
    each = np.stack((owner[named], launch[named]), axis=1).reshape(-1)  # a node, then its launch, then the next node
    sums = np.bincount(each, np.stack((took, waited), axis=1).reshape(-1), minlength=len(owners)).tolist()
    there, first = np.unique(each, return_index=True)
    return {owners[i]: sums[i] for i in there[np.argsort(first)].tolist()}


def _owners(replay: Replay, nodes: Int64s) -> tuple[list[Owner], Int64s, Int64s]:
    graph = replay.graph
    rank_of, place_of = np.full(len(graph), NOTHING, np.int32), np.zeros(len(graph), np.int64)
    for index, parts in enumerate(zip(graph.host, graph.arrival, graph.device, strict=True)):
        for code, of_part in enumerate(parts):
            rank_of[of_part] = index
            place_of[of_part] = len(_PARTS) * np.arange(len(of_part)) + code
    known: defaultdict[Owner, int] = defaultdict()
    known.default_factory = known.__len__  # the next number for an owner that comes for the first time
    owner, launch = np.full(len(nodes), NOTHING, np.int64), np.full(len(nodes), NOTHING, np.int64)
    for index, rank in enumerate(replay.shared.run.ranks):
        mine = np.flatnonzero(rank_of[nodes] == index)
        if not len(mine):
            continue
        names = _Names(rank, replay.programs[index])
        place, part = np.divmod(place_of[nodes[mine]], len(_PARTS))
        _, first, alike = np.unique(names.codes(place, part), return_index=True, return_inverse=True)
        distinct = zip(place[first].tolist(), part[first].tolist(), strict=True)
        said = [(rank.rank, *names.of(at, _PARTS[code])) for at, code in distinct]
        owner[mine] = np.array([known[one] for one in said])[alike]
        launch[mine] = known[(rank.rank, *_LAUNCH)]
    return list(known), owner, launch


class _Names:
    def __init__(self, rank: Rank, program: Program) -> None:
        self._num_items = len(program)
        self._doing = np.argmax(np.stack([getattr(program.host, part) for part in _HOST_PARTS]), axis=0)
        self._kind = program.kind
        self._name = rank.work.name[program.device_index] if rank.has_device else None
        self._strings = rank.trace.strings

    def codes(self, place: Int64s, part: Int64s) -> Int64s:
        item = place % self._num_items
        name = NO_STRING if self._name is None else self._name[item].astype(np.int64)
        operation = (name + 1) * 256 + self._kind[item]
        of_part = np.where(part == _PARTS.index("host"), self._doing[item], operation)
        return len(_PARTS) * np.where(part == _PARTS.index("arrival"), 0, of_part) + part

    def of(self, place: int, part: str) -> tuple[str, str]:
        item = place % self._num_items
        if part == "host":
            return part, _HOST_PARTS_NAMED[self._doing[item]]
        return _LAUNCH if part == "arrival" else self._operation(item)

    def _operation(self, item: int) -> tuple[str, str]:
        name = int(self._name[item]) if self._name is not None else NO_STRING
        text = "gloo" if self._name is None else "?" if name == NO_STRING else self._strings[name] or "?"
        return _KINDS.get(int(self._kind[item]), "other"), printable(text, width=120)


def _slack(replay: Replay, duration: Floats, end: Floats) -> dict[int, float]:
    graph = replay.graph
    slack = graph.wiring.waits.latest(float(end.max()), duration) - end
    out = {}
    for index, rank in enumerate(replay.shared.run.ranks):
        computes = np.tile(replay.programs[index].kind == EventKind.KERNEL, graph.repeats)
        nodes = graph.device[index][computes & (graph.step[index] >= graph.num_steps // 2)]
        if len(nodes):
            out[rank.rank] = float(max(0.0, median(slack[nodes])))
    return out
