"""Which operators computed on the host itself, for long, while the device got nothing to do?

An operator that launches work takes microseconds. One that runs for a millisecond without a call into the device's
runtime computes on tensors of the host: a mask, a statistic, a tokeniser. While it runs nothing is launched, so for the
device it is as good as a stall.
"""

import numpy as np

from stepscope.records import once_per_record
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, of_kinds

MIN_COMPUTING_NS = 1_000_000


def launching_calls(rank: Rank) -> Rows:
    """Return the rows of what the host recorded of itself, less the operators that only compute."""
    mask = of_kinds(rank.kinds, (EventKind.HOST_OP, EventKind.RUNTIME))
    mask[computing_operators(rank)] = False
    return np.flatnonzero(mask)


@once_per_record
def computing_operators(rank: Rank) -> Rows:
    """Return the rows of these operators; none for a rank without a device, whose operators are its work."""
    if not rank.has_device:
        return np.empty(0, np.int64)
    trace = rank.trace
    rows = np.flatnonzero((rank.kinds == EventKind.HOST_OP) & (trace["dur_ns"] >= MIN_COMPUTING_NS))
    if not len(rows):
        return rows
    calls = np.sort(trace["ts_ns"][rank.kinds == EventKind.RUNTIME])
    start = trace["ts_ns"][rows]
    holds_call = np.searchsorted(calls, start + trace["dur_ns"][rows]) > np.searchsorted(calls, start)
    return rows[~holds_call]
