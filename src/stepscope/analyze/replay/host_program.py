"""What does a rank without a device do, in order? The same program, with gloo's threads in place of the device.

Each collective is an item: the host asks for it, one of gloo's threads carries it out. The host's own time is what it
spends between two calls while not waiting; it waits where neither an operator runs nor anything but a collective goes
on. A rank that meets no other (one process on a CPU) has its steps' ends as items.
"""

from dataclasses import replace

import numpy as np

from stepscope.analyze.host.time import Activities, data_loading, stalling
from stepscope.analyze.ranks.window import host_compute
from stepscope.analyze.replay.program import EMPTY_PROGRAM, NO_WAITS, NOTHING, Program, stream_predecessors
from stepscope.intervals import EMPTY, Intervals, subtract, union, union_of
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

_MIN_WAIT_NS = 200_000
_MAX_IN_FLIGHT = 4096


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
        stream_predecessor=stream_predecessors(lane),
        waits=NO_WAITS,
        released_by=released_by[:-1],
        latency_ns=0,
        queued_gap_ns={},
        begin_ns=int(shared.clocks.shared(index, np.array([first_ns]))[0]),
        backlog_ns={},
        tail_released_by=int(released_by[-1]),
    )


def _alone(shared: AlignedRun, index: int, wanted: Int64s, numbers: Int64s) -> Program:
    """Return the program of a rank that meets no other: the host's time of each step, and its end as the only item."""
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
        stream_predecessor=stream_predecessors(np.zeros(len(wanted), np.int64)),
        released_by=marks,
        begin_ns=int(shared.clocks.shared(index, edges[:1])[0]),
    )


def issue_edges(rank: Rank, rows: Int64s, numbers: Int64s) -> Int64s:
    """Return the beginning of the first step, when the host asked for each collective, and the end of the last step."""
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
    """Return which of gloo's threads ran each collective, told by which of them overlap: on one thread none do.

    Of the threads that are free the one that became free last takes it: that is the one it may have waited for.
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
    """Return for each item the last collective that ended while the host waited before asking for it; one more for
    waiting after the last item.

    Between two operators there is always a moment of nothing; waiting takes longer.
    """
    out = np.full(len(end) + 1, NOTHING, np.int64)
    waits = np.flatnonzero(waiting.end - waiting.start >= _MIN_WAIT_NS)
    asked = np.searchsorted(edges, waiting.end[waits], side="left") - 1
    for item, wait in zip(asked.tolist(), waits.tolist(), strict=True):
        if 0 <= item <= len(end):
            first = max(0, item - _MAX_IN_FLIGHT)
            ends = end[first:item]
            done = np.flatnonzero((ends > waiting.start[wait]) & (ends <= waiting.end[wait]))
            if len(done):
                out[item] = first + int(done[np.argmax(ends[done])])
    return out
