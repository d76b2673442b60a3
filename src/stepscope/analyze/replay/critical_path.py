"""What decides the step? The chain of host work, launches, kernels and collectives that nothing could run beside.

Found on the replay: from the end of the last step back through whatever each thing waited for longest. What is not
on it has slack: so much later it could end without the run ending later.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.replay.graph import Graph, end_times, step_ends
from stepscope.analyze.replay.replay import Replay, with_host_factor
from stepscope.trace.classify import EventKind
from stepscope.units import printable

_MAX_SEGMENTS = 30
_KINDS = {
    EventKind.KERNEL: "kernel",
    EventKind.COMM_KERNEL: "collective",
    EventKind.COPY: "copy",
    EventKind.SET: "set",
}

_LAUNCH = ("launch", "latency and gaps between operations")
_HOST_PARTS = ("own_ns", "data_ns", "allocator_ns", "stall_ns")
_HOST_PARTS_NAMED = ("operators, launches and python", "loading data", "allocating device memory", "stalled")


@dataclass(frozen=True)
class Segment:
    """Time that one thing holds on the critical path."""

    rank: int
    what: str
    """host, launch (from a call to its start, or from one operation to the next), kernel, collective, copy, set"""
    name: str
    ns_per_step: float
    pct: float


@dataclass(frozen=True)
class CriticalPath:
    """The path of the steady steps, and how much slack each rank has."""

    segments: tuple[Segment, ...]
    """the largest first"""
    ns_per_step: float
    slack_ns: dict[int, float]
    """by rank: how much longer its compute could take without delaying the run, median over its kernels"""


def critical_path(replay: Replay) -> CriticalPath:
    """Return the critical path of a replay, per step."""
    graph = replay.graph
    duration = with_host_factor(graph, replay.host_factor)
    end = end_times(graph, duration)
    ends = step_ends(graph, end)
    last = graph.num_steps - 1
    half = max(0, last - max(1, (last + 1) // 2))
    begin_ns = float(ends[:, half].max()) if last else 0.0
    owners = _owners(replay)
    totals: dict[tuple[int, str, str], float] = defaultdict(float)
    for node, start, stop, waited_ns in _walk(graph, duration, end, begin_ns):
        if node not in owners:  # where ranks meet: takes no time
            continue
        rank, what, name = owners[node]
        totals[(rank, what, name)] += max(0.0, stop - max(start, begin_ns))
        totals[(rank, *_LAUNCH)] += max(0.0, min(waited_ns, start - begin_ns))
    steps = max(last - half, 1)
    whole = sum(totals.values()) or 1.0
    segments = [
        Segment(rank, what, name, value / steps, 100 * value / whole)
        for (rank, what, name), value in sorted(totals.items(), key=lambda one: -one[1])[:_MAX_SEGMENTS]
        if value > 0
    ]
    return CriticalPath(tuple(segments), whole / steps, _slack(replay, duration, end))


def _walk(
    graph: Graph, duration: np.ndarray, end: np.ndarray, begin_ns: float
) -> list[tuple[int, float, float, float]]:
    """Return `(node, start, end, lag before it)` along the path, from the last end back to `begin_ns`."""
    path, wiring = [], graph.wiring
    node = int(np.argmax(end))
    while node >= 0:
        start = float(end[node] - duration[node])
        edges = slice(wiring.first_edge[node], wiring.first_edge[node + 1])
        source = wiring.edge_from[edges]
        ready = end[source] + wiring.edge_lag_ns[edges]
        binding = int(np.argmax(ready)) if len(ready) else -1
        held = binding >= 0 and ready[binding] >= start - 1
        lag = float(wiring.edge_lag_ns[edges][binding]) if held else 0.0
        path.append((node, start, float(end[node]), lag if start > begin_ns else 0.0))
        node = int(source[binding]) if held and start > begin_ns else -1
    return path


def _owners(replay: Replay) -> dict[int, tuple[int, str, str]]:
    """Return rank, kind and name of the nodes of each rank."""
    owners: dict[int, tuple[int, str, str]] = {}
    graph = replay.graph
    for index, (rank, program) in enumerate(zip(replay.shared.run.ranks, replay.programs, strict=True)):
        names = [_item_name(replay, index, i) for i in range(len(program))]
        spent = np.stack([getattr(program.host, part) for part in _HOST_PARTS])
        doing = [_HOST_PARTS_NAMED[i] for i in np.argmax(spent, axis=0).tolist()]
        for i, node in enumerate(graph.host[index].tolist()):
            owners[node] = (rank.rank, "host", doing[i % len(program)])
        for i, node in enumerate(graph.device[index].tolist()):
            owners[node] = (rank.rank, *names[i % len(program)])
        owners |= dict.fromkeys(graph.arrival[index].tolist(), (rank.rank, *_LAUNCH))
    return owners


def _item_name(replay: Replay, index: int, item: int) -> tuple[str, str]:
    rank, program = replay.shared.run.ranks[index], replay.programs[index]
    kind = EventKind(int(program.kind[item]))
    if not rank.has_device:
        return _KINDS.get(kind, "other"), "gloo"
    name = rank.trace.text(int(rank.work.name[program.device_index[item]])) or "?"
    return _KINDS.get(kind, "other"), printable(name, width=120)


def _slack(replay: Replay, duration: np.ndarray, end: np.ndarray) -> dict[int, float]:
    """Return per rank the median slack of its compute in the last steps."""
    graph = replay.graph
    slack = graph.wiring.waits.latest(float(end.max()), duration) - end
    out = {}
    for index, rank in enumerate(replay.shared.run.ranks):
        computes = np.tile(replay.programs[index].kind == EventKind.KERNEL, graph.repeats)
        nodes = graph.device[index][computes & (graph.step[index] >= graph.num_steps // 2)]
        if len(nodes):
            out[rank.rank] = float(max(0.0, np.median(slack[nodes])))
    return out
