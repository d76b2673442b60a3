"""Which operators computed on the host itself, for long, while the device got nothing to do, and when did the rest run?

An operator that launches work takes microseconds. One that runs for a millisecond without a call into the device's
runtime computes on tensors of the host: a mask, a statistic, a tokeniser. While it runs nothing is launched, so for the
device it is as good as a stall.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import HostCalls, host_calls
from stepscope.analyze.host.runtime_calls import runtime_rows, runtime_starts
from stepscope.intervals import Intervals, closed, union_by
from stepscope.records import once_per_record
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind

MIN_COMPUTING_NS = 1_000_000
MIN_HOLE_NS = 1_000_000
"""python between two operators takes microseconds; where nothing is recorded for less than this nothing stalls"""


@once_per_record
def launching_spans(rank: Rank) -> dict[int, Intervals]:
    """Return by thread when the host ran anything that it recorded of itself, less the operators that only compute.

    Holes shorter than MIN_HOLE_NS are closed.
    """
    trace, ops, calls = rank.trace, host_calls(rank), runtime_rows(rank)
    launching = _outermost(ops, computing_operators(rank))
    called = trace["ts_ns"][calls]
    thread = np.concatenate((ops.thread[launching], trace["tid"][calls]))
    start = np.concatenate((ops.start_ns[launching], called))
    end = np.concatenate((ops.end_ns[launching], called + trace["dur_ns"][calls]))
    threads = distinct(thread)
    of, ran = union_by(np.searchsorted(threads, thread), start, end)
    bounds = np.searchsorted(of, np.arange(len(threads) + 1)).tolist()
    each = zip(threads.tolist(), bounds[:-1], bounds[1:], strict=True)
    return {one: closed(Intervals(ran.start[a:b], ran.end[a:b]), MIN_HOLE_NS) for one, a, b in each}


def _outermost(ops: HostCalls, without: Rows) -> npt.NDArray[np.intp]:
    """Return which operators, some left out, lie in no other: the rest adds nothing to when the host ran any."""
    if not len(without):
        return np.flatnonzero(ops.parent < 0)
    left_out = among(ops.row, without)
    return np.flatnonzero(((ops.parent < 0) | left_out[ops.parent]) & ~left_out)


@once_per_record
def computing_operators(rank: Rank) -> Rows:
    """Return the rows of these operators; none for a rank without a device, whose operators are its work."""
    if not rank.has_device:
        return np.empty(0, np.int64)
    trace = rank.trace
    rows = np.flatnonzero(trace["dur_ns"] >= MIN_COMPUTING_NS)
    rows = rows[rank.kinds[rows] == EventKind.HOST_OP]
    if not len(rows):
        return rows
    calls, start = runtime_starts(rank), trace["ts_ns"][rows]
    holds_call = np.searchsorted(calls, start + trace["dur_ns"][rows]) > np.searchsorted(calls, start)
    return rows[~holds_call]
