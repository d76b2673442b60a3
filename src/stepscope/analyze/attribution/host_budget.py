"""Where does the step of a rank without a device go? The host's operators are its compute.

At each instant, the first that holds:

    an operator runs on a training thread    its region's part; operators of the data region are data_loading
    the loop asks for its next batch         data_loading
    a collective runs                        exposed_transfer, wait, ... (the training thread waits for it)
    an operator around a collective's call   its region's part: its own code
    the autograd engine runs a node          backward: its own code
    none of these for 3 ms or more           host_stall
    inside a range that names a part         that part: python between two operators
    outside all ranges                       other_compute: the loop's own python, where ranges name the forward passes;
                                             not while a collective that was asked for has not begun
    anything else                            unknown

Operators that only wrap others (autograd nodes, communication calls and what is around them) do not count as running:
inside them the host may well wait (`host_running.py`).
"""

import re

import numpy as np

from stepscope.analyze.host.busy_operators import around_calls, running_operators
from stepscope.analyze.host.host_compute import STALL_NS
from stepscope.analyze.step.parts import COMPUTE_PART, PART_CODE
from stepscope.analyze.step.regions import Marks, host_regions, marks_of
from stepscope.contract.regions import EVALUATE, Region, named_region
from stepscope.intervals import Intervals, complement, subtract, union, union_of
from stepscope.run.collectives.from_kernels import RECORD
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import rows_named
from stepscope.trace.table import Int64s

_WRAPPER = re.compile(rf"^{EVALUATE}|Backward\d*$|^(c10d|_c10d_functional|gloo|nccl)::?|^{RECORD}$")

# Ranges nest this way where they do: a closure's forward and backward run inside the optimizer's step.
_INNER_FIRST = (Region.BACKWARD, Region.FORWARD, Region.OPTIMIZER, Region.OTHER)

Layers = list[tuple[int, Intervals]]


def host_layers(rank: Rank, cuts: Int64s) -> tuple[Layers, Layers]:
    """Return what goes before and what goes after communication, the first on top, labelled with parts."""
    marks = marks_of(rank)
    threads = distinct(np.append(marks.autograd_threads, marks.main_thread))
    operators = _operators(rank, marks, threads, running_operators(rank))
    wrappers = _operators(rank, marks, threads, around_calls(rank))
    data = (PART_CODE["data_loading"], _spans(rank, marks.rows_of(Region.DATA)))
    nodes = _spans(rank, marks.autograd_nodes)
    comm = union(rank.collectives.start_ns, rank.collectives.end_ns)
    recorded = union_of(nodes, data[1], comm, *(spans for _, spans in (*operators, *wrappers)))
    stalls = _long_holes(recorded, cuts)
    ranges = [(COMPUTE_PART[region], _spans(rank, marks.rows_of(region))) for region in _INNER_FIRST]
    named = [(PART_CODE[part], subtract(spans, stalls)) for part, spans in ranges]
    after = [*wrappers, (PART_CODE["backward"], nodes), *named, (PART_CODE["host_stall"], stalls)]
    if len(marks.rows_of(Region.FORWARD)):
        after.append((PART_CODE["other_compute"], _nothing_asked_for(rank, cuts)))
    return [*operators, data], after


def _operators(rank: Rank, marks: Marks, threads: Int64s, chosen: Rows) -> Layers:
    """Return the time of operators by part; only outermost ones are asked where they belong."""
    trace = rank.trace
    rows = rows_named(trace, chosen, _computes)
    rows = _outermost(rank, rows[among(trace["tid"][rows], threads)])
    region, _, _ = host_regions(rank, rows, marks)
    return [(PART_CODE[part], _spans(rank, rows[region == code])) for code, part in COMPUTE_PART.items()]


def _computes(name: str) -> bool:
    return not _WRAPPER.search(name) and named_region(name) is None


def _outermost(rank: Rank, rows: Rows) -> Rows:
    """Return the rows that lie in no other of their thread."""
    trace = rank.trace
    kept = [np.empty(0, np.int64)]
    for thread in distinct(trace["tid"][rows]):
        own = rows[trace["tid"][rows] == thread]
        own = own[np.lexsort((-trace["dur_ns"][own], trace["ts_ns"][own]))]
        reach = np.maximum.accumulate(trace["ts_ns"][own] + trace["dur_ns"][own])
        kept.append(own[np.concatenate(([True], trace["ts_ns"][own[1:]] >= reach[:-1]))])
    return np.concatenate(kept)


def _long_holes(recorded: Intervals, cuts: Int64s) -> Intervals:
    holes = complement(recorded, int(cuts[0]), int(cuts[-1]))
    long = holes.end - holes.start >= STALL_NS
    return Intervals(holes.start[long], holes.end[long])


def _nothing_asked_for(rank: Rank, cuts: Int64s) -> Intervals:
    """Return the time in which no collective was asked for that has not begun."""
    asked = union(rank.collectives.issue_ns, rank.collectives.start_ns)
    return complement(asked, int(cuts[0]), int(cuts[-1]))


def _spans(rank: Rank, rows: Rows) -> Intervals:
    start = rank.trace["ts_ns"][rows]
    return union(start, start + rank.trace["dur_ns"][rows])
