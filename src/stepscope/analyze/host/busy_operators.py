"""Which operators of the host compute while they run, and do not wait?

A communication call computes nothing, and what is around it (an autograd node, a function that reduces activations) may
spend its time waiting: gloo runs the collective on a thread of its own, and nothing is recorded while the caller waits
for it. So operators around a call do not count as running; those inside them do.
"""

import numpy as np
import numpy.typing as npt

from stepscope.run.collectives.from_kernels import RECORD
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, rows_named

CALLS = ("c10d::", "_c10d_functional::", "gloo:", "nccl:", RECORD)


def running_operators(rank: Rank) -> Rows:
    """Return the operators that compute: no communication calls, and none around one."""
    ops, around = _operators(rank)
    return ops[~around]


def around_calls(rank: Rank) -> Rows:
    """Return the operators around a communication call: what they do themselves is computing or waiting."""
    ops, around = _operators(rank)
    return ops[around]


def _operators(rank: Rank) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return the operators that are no communication calls, and which of them are around one."""
    trace = rank.trace
    ops = np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    calls = rows_named(trace, ops, lambda s: s.startswith(CALLS))
    ops = ops[~among(ops, calls)]
    around = np.zeros(len(ops), bool)
    for thread in distinct(trace["tid"][calls]):
        begun = np.sort(trace["ts_ns"][calls[trace["tid"][calls] == thread]])
        mine = np.flatnonzero(trace["tid"][ops] == thread)
        start = trace["ts_ns"][ops[mine]]
        first = np.searchsorted(begun, start)
        around[mine] = np.searchsorted(begun, start + trace["dur_ns"][ops[mine]]) > first
    return ops, around
