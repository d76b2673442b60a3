"""Which operators computed on the host itself, for long, while the device got nothing to do, and when did the rest run?

An operator that launches work takes microseconds. One that runs for a millisecond without a call into the device's
runtime computes on tensors of the host: a mask, a statistic, a tokeniser. While it runs nothing is launched, so for the
device it is as good as a stall.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import HostCalls, host_calls
from stepscope.analyze.host.runtime_calls import runtime_rows, runtime_starts
from stepscope.intervals import Intervals, union_by
from stepscope.records import once_per_record
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct_places
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

MIN_COMPUTING_NS = 1_000_000
MIN_HOLE_NS = 1_000_000
"""python between two operators takes microseconds; where nothing is recorded for less than this nothing stalls"""
STALL_NS = 3_000_000
"""a hole in what the host recorded from which it did something else; ordinary python stays below 2 ms"""


@once_per_record
def launching_spans(rank: Rank) -> dict[int, Intervals]:
    """Return by thread when the host ran anything that it recorded of itself, less the operators that only compute.

    Holes shorter than MIN_HOLE_NS are closed.
    """
    trace, ops, calls = rank.trace, host_calls(rank), runtime_rows(rank)
    launching = _outermost(ops, computing_operators(rank))
    called = trace["ts_ns"].take(calls)
    # Each by itself first: its rows are nearly in order, and few spans are left to unite with the other's.
    parts = (
        _closed(ops.thread.take(launching), ops.start_ns.take(launching), ops.end_ns.take(launching)),
        _closed(trace["tid"].take(calls), called, called + trace["dur_ns"].take(calls)),
    )
    thread, start, end = _closed(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    first = _first_of_runs(thread)
    bounds = [*first.tolist(), len(thread)]
    each = zip(thread[first].tolist(), bounds[:-1], bounds[1:], strict=True)
    return {one: Intervals(start[a:b], end[a:b]) for one, a, b in each}


def _closed(thread: Int64s, start: Int64s, end: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return thread, start and end of when the threads ran, by thread, with short holes closed."""
    first = _first_of_runs(thread)
    threads, number = distinct_places(thread[first])
    of, ran = union_by(np.repeat(number, np.diff(first, append=len(thread))), start, end, gap_ns=MIN_HOLE_NS)
    return threads[of], *ran


def _first_of_runs(values: Int64s) -> npt.NDArray[np.intp]:
    """Return where a value differs from the one before; rows of one thread come together."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


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
