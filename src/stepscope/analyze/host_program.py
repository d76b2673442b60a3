"""What does a rank without a device do, in order? The same program, with gloo's threads in place of the device.

Each collective is an item: the host asks for it, a gloo thread carries it out. The host's own time is what it spends
between two calls while not waiting; it waits where neither an operator runs nor anything but a collective goes on.
"""

import numpy as np

from stepscope.analyze.host_time import HostParts, data_loading, stalling
from stepscope.analyze.program import EMPTY_PROGRAM, NOTHING, Program
from stepscope.analyze.rank_account import host_compute
from stepscope.intervals import covered_ns, subtract, union, union_of
from stepscope.run.aligned import Aligned
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

_GLOO_STREAM = 0


def host_program(shared: Aligned, index: int, numbers: Int64s) -> Program:
    """Return the program of a CPU rank over the steps of these numbers."""
    rank = shared.run.ranks[index]
    c = rank.collectives
    wanted = np.flatnonzero(np.isin(rank.steps.number, numbers))
    if not len(wanted):
        return EMPTY_PROGRAM
    rows = np.flatnonzero(np.isin(c.step, wanted) & (c.issue_ns > np.iinfo(np.int64).min))
    rows = rows[np.argsort(c.issue_ns[rows], kind="stable")]
    first_ns, last_ns = int(rank.steps.start_ns[wanted[0]]), int(rank.steps.end_ns[wanted[-1]])
    edges = np.concatenate(([first_ns], c.issue_ns[rows], [last_ns]))
    edges = np.maximum.accumulate(edges)
    parts = _parts(rank, edges[:-1], edges[1:])
    released_by = _released_by(rank, rows, edges)
    return Program(
        device_index=rows,
        step=np.searchsorted(numbers, rank.steps.number[c.step[rows]]).astype(np.int32),
        host=parts.part(slice(0, len(rows))),
        tail=parts.part(slice(len(rows), len(rows) + 1)),
        duration_ns=(c.end_ns - c.start_ns)[rows] - np.maximum(shared.wait_ns[index][rows], 0),
        kind=np.full(len(rows), EventKind.COMM_KERNEL, np.uint8),
        collective=rows,
        stream=np.full(len(rows), _GLOO_STREAM, np.int64),
        stream_predecessor=np.arange(-1, len(rows) - 1),
        waits_for=((),) * len(rows),
        released_by=released_by[:-1],
        latency_ns=0,
        queued_gap_ns={},
        begin_ns=int(shared.clocks.shared(index, np.array([first_ns]))[0]),
        backlog_ns={},
        tail_released_by=int(released_by[-1]),
    )


def _parts(rank: Rank, start: Int64s, end: Int64s) -> HostParts:
    waiting = subtract(union(rank.collectives.start_ns, rank.collectives.end_ns), host_compute(rank))
    data = subtract(data_loading(rank), waiting)
    stalls = subtract(stalling(rank), union_of(waiting, data))
    parts = [covered_ns(x, start, end) for x in (data, stalls)]
    own = end - start - covered_ns(waiting, start, end) - sum(parts)
    return HostParts(np.maximum(own, 0), parts[0], np.zeros(len(start), np.int64), parts[1])


def _released_by(rank: Rank, rows: Int64s, edges: Int64s) -> Int64s:
    """Return for each item the last collective that ended while the host waited before asking for it; one more for
    waiting after the last item.
    """
    out = np.full(len(rows) + 1, NOTHING, np.int64)
    end = rank.collectives.end_ns[rows]
    waiting = subtract(union(rank.collectives.start_ns, rank.collectives.end_ns), host_compute(rank))
    waited = covered_ns(waiting, edges[:-1], edges[1:])
    for item in np.flatnonzero(waited > 0).tolist():
        done = np.flatnonzero((end[:item] > edges[item]) & (end[:item] <= edges[item + 1]))
        if len(done):
            out[item] = int(done[np.argmax(end[done])])
    return out
