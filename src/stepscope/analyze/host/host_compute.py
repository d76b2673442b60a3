"""Which operators computed on the host itself, for long, while the device got nothing to do, and when did the rest run?

An operator that launches work takes microseconds. One that runs for a millisecond without a call into the device's
runtime computes on tensors of the host: a mask, a statistic, a tokeniser. While it runs nothing is launched, so for the
device it is as good as a stall.
"""

import numpy as np

from stepscope.analyze.host.calls import host_calls
from stepscope.analyze.host.runtime_calls import runtime_rows, runtime_starts
from stepscope.intervals import Intervals, union
from stepscope.records import once_per_record
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind

MIN_COMPUTING_NS = 1_000_000


@once_per_record
def launching_spans(rank: Rank) -> dict[int, Intervals]:
    """Return by thread when the host ran anything that it recorded of itself, less the operators that only compute."""
    trace, ops, calls = rank.trace, host_calls(rank), runtime_rows(rank)
    computes = among(ops.row, computing_operators(rank))
    # What lies in another one adds nothing.
    outermost = np.flatnonzero(((ops.parent < 0) | computes[ops.parent]) & ~computes)
    thread = np.concatenate((ops.thread[outermost], trace["tid"][calls]))
    start = np.concatenate((ops.start_ns[outermost], trace["ts_ns"][calls]))
    end = np.concatenate((ops.end_ns[outermost], trace["ts_ns"][calls] + trace["dur_ns"][calls]))
    spans = {}
    for one in distinct(thread).tolist():
        mine = np.flatnonzero(thread == one)
        spans[one] = union(start[mine], end[mine])
    return spans


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
