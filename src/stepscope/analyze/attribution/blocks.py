"""When was the host kept from launching work, and by what?

Only threads that matter count: the training loop's and those that launch kernels (the autograd engine's). At each
instant the first of these holds:

    the profiler handing over its own buffers            PROFILER
    python's garbage collector                           GC
    the loop asks for its next batch                     DATA
    memory is being obtained or returned                 ALLOCATOR
    the host waits for the device, or a copy blocks it   SYNC
    nothing that launches was recorded for 3 ms or more  STALL

Shorter holes are ordinary python between two operators: part of what launching costs.
"""

import re
from enum import IntEnum

import numpy as np

from stepscope.analyze.host.host_compute import STALL_NS, launching_spans
from stepscope.analyze.host.runtime_calls import allocations, synchronisations
from stepscope.analyze.step.layers import Timeline, painted
from stepscope.analyze.step.regions import Marks
from stepscope.contract.regions import Region
from stepscope.intervals import EMPTY, Intervals, union, union_of
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, of_kinds, rows_named
from stepscope.trace.table import Int64s

BLOCKING_COPY_NS = 50_000
"""a copy from or to pageable memory whose call takes longer than this kept the host busy with the copy itself"""

_SYNC_OP = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|masked_select|unique\w*|equal)$")
_COLLECTOR = re.compile(r"^<built-in (function|method) (gc\.)?collect|\bgc\.collect\b|\bgc\.py\(|^gc(_collect)?$")
_PROFILER = re.compile(r"^(Activity Buffer|Buffer Flush|Instrumentation|Resource|CUPTI)", re.IGNORECASE)


class BlockCause(IntEnum):
    """What kept the host from launching."""

    PROFILER = 0
    GC = 1
    DATA = 2
    ALLOCATOR = 3
    SYNC = 4
    STALL = 5


def host_blocked(rank: Rank, marks: Marks, cuts: Int64s) -> Timeline:
    """Return the time between the first and the last cut by what blocked the host; NOTHING where nothing did."""
    threads = launching_threads(rank, marks)
    data = marks.rows_of(Region.DATA)
    layers = {
        BlockCause.PROFILER: _spans(rank, _profilers_own(rank), None),
        BlockCause.GC: _collector_spans(rank, threads),
        BlockCause.DATA: _spans(rank, data, threads),
        BlockCause.ALLOCATOR: _spans(rank, allocations(rank), threads),
        BlockCause.SYNC: _sync_spans(rank, threads),
        BlockCause.STALL: _holes(rank, threads, data),
    }
    return painted([(int(kind), spans) for kind, spans in layers.items()], cuts)


def launching_threads(rank: Rank, marks: Marks) -> Int64s:
    """Return the threads whose delays delay the device: the training loop's, and all that launch kernels."""
    work = rank.work
    kernels = (work.launch_row >= 0) & of_kinds(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))
    return distinct(np.append(rank.trace["tid"][work.launch_row[kernels]], marks.main_thread))


def _spans(rank: Rank, rows: Rows, threads: Int64s | None) -> Intervals:
    trace = rank.trace
    rows = rows if threads is None else rows[among(trace["tid"][rows], threads)]
    start = trace["ts_ns"][rows]
    return union(start, start + trace["dur_ns"][rows])


def _profilers_own(rank: Rank) -> Rows:
    return rank.rows_named(lambda s: bool(_PROFILER.search(s)), EventKind.OVERHEAD)


def _collector_spans(rank: Rank, threads: Int64s) -> Intervals:
    collects = rank.rows_named(lambda s: bool(_COLLECTOR.search(s)), EventKind.PYTHON, EventKind.ANNOTATION)
    return _spans(rank, collects, threads)


def _sync_spans(rank: Rank, threads: Int64s) -> Intervals:
    """Return calls that wait for the device, the operators made for it around them, and copies that block."""
    trace = rank.trace
    calls = synchronisations(rank)
    calls = calls[among(trace["tid"][calls], threads)]
    calls = _without_profilers_own(rank, calls)
    ops = rank.rows_named(lambda s: bool(_SYNC_OP.search(s)), EventKind.HOST_OP)
    moments = np.sort(trace["ts_ns"][calls])
    first = np.searchsorted(moments, trace["ts_ns"][ops])
    holds_one = np.searchsorted(moments, trace["ts_ns"][ops] + trace["dur_ns"][ops]) > first
    return _spans(rank, np.concatenate((calls, ops[holds_one], _blocking_copies(rank))), threads)


def _without_profilers_own(rank: Rank, calls: Rows) -> Rows:
    """Return the calls less those after the last step, or after the last launch: the profiler ends its window so."""
    starts = rank.trace["ts_ns"][calls]
    if len(rank.steps):
        return calls[starts < rank.steps.end_ns.max()]
    launches = rank.work.launch_row[rank.work.launch_row >= 0]
    return calls[starts < rank.trace["ts_ns"][launches].max()] if len(launches) else calls


def _blocking_copies(rank: Rank) -> Rows:
    """Return the calls of copies between the device and pageable memory that took long."""
    work, trace = rank.work, rank.trace
    copies = np.flatnonzero((work.kind == EventKind.COPY) & (work.launch_row >= 0))
    pageable = rows_named(trace, work.row[copies], lambda s: "Pageable" in s)
    calls = distinct(work.launch_row[copies[among(work.row[copies], pageable)]])
    return calls[trace["dur_ns"][calls] >= BLOCKING_COPY_NS]


def _holes(rank: Rank, threads: Int64s, data: Rows) -> Intervals:
    """Return the time of 3 ms or more between two records in which these threads did nothing that has a name."""
    recorded = launching_spans(rank)
    busy = union_of(_spans(rank, data, threads), *(recorded.get(one, EMPTY) for one in threads.tolist()))
    start, end = busy.end[:-1], busy.start[1:]
    long = end - start >= STALL_NS
    return Intervals(start[long], end[long])
