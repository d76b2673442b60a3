"""Who called whom on the host: the operators of a rank as call stacks, one per thread.

Operators of one thread nest. Where two cross, which only broken clocks or asynchronous ranges do, what lies in both
belongs to the later one, so that no moment of a thread is counted twice.
"""

import re
from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, union
from stepscope.records import ArrayRecord, once_per_record
from stepscope.run.collectives import RECORD
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, by_string, of_kinds, rows_named
from stepscope.trace.scanner.call_stack import call_stack_parents, stacked
from stepscope.trace.table import Int64s, Trace

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
# indices of rows: a rank has far fewer than two billion, and these columns stay as long as the report is made
Places = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, repr=False)
class HostCalls(ArrayRecord):
    """Operators by thread, then start, callers before what they call. Indices are into this table, -1 for none."""

    #: in the event table
    row: Places
    name: npt.NDArray[np.int32]
    thread: Int64s
    start_ns: Int64s
    end_ns: Int64s
    parent: Places

    def __len__(self) -> int:
        return len(self.row)

    def at_rows(self, rows: npt.NDArray[np.integer]) -> Int64s:
        """Return the indices of event rows; -1 for rows that are no call here, and for -1."""
        end = len(self._index_of_row) - 1
        return self._index_of_row.take(np.where((rows >= 0) & (rows < end), rows, end)).astype(np.int64)

    @cached_property
    def _index_of_row(self) -> Places:
        out = np.full(int(self.row.max(initial=-1)) + 2, -1, np.int32)
        out[self.row.astype(np.intp)] = np.arange(len(self), dtype=np.int32)  # one of 64 bits takes twice as long
        return out

    def rows_named(self, trace: Trace, matches: Callable[[str], bool]) -> Places:
        """Return the rows of the calls whose name satisfies `matches`, in the order of this table."""
        return self.row[np.flatnonzero(by_string(trace, self.name, matches))]

    def of_thread(self, thread: int) -> slice:
        """Return where the calls of a thread lie: together, by start."""
        low, high = np.searchsorted(self.thread, [thread, thread + 1])
        return slice(int(low), int(high))

    def self_ns(self) -> Int64s:
        """Return the time in which each call was the innermost of its thread. The sum is the threads' busy time."""
        parent, until = self._indices_of_parents(), self._next_start()
        stop = np.minimum(self.end_ns, until)
        np.maximum(stop, self.start_ns, out=stop)
        out, above = stop - self.start_ns, parent
        while len(still := np.flatnonzero((above >= 0) & (stop < until))):  # up the callers that are still open
            current, moment, until = above.take(still), stop.take(still), until.take(still)
            stop = np.maximum(np.minimum(self.end_ns.take(current), until), moment)
            np.add.at(out, current, stop - moment)
            above = parent.take(current)
        return out

    def with_called(self, values: Floats) -> Floats:
        """Return each call's value plus those of everything it called, directly or not."""
        out, parent = values.copy(), self._indices_of_parents()
        current = np.flatnonzero(values != 0)
        carried, current = values.take(current), parent.take(current)
        while len(inside := np.flatnonzero(current >= 0)):
            current, carried = current.take(inside), carried.take(inside)
            np.add.at(out, current, carried)
            current = parent.take(current)
        return out

    def nearest(self, wanted: Mask) -> Int64s:
        """Return for each call the innermost wanted one among itself and its callers, -1 where there is none."""
        if not wanted.any():
            return np.full(len(self), -1, np.int64)
        up = np.append(np.where(wanted, np.arange(len(self)), self.parent), -1)  # in the last place: of no call
        while ((further := up[up]) != up).any():  # reaches twice as far each time
            up = further
        return up[:-1]

    def nearest_to(self, call: Int64s, wanted: Mask) -> Int64s:
        """Return as `nearest` does, for some calls alone: they climb to it. -1 stays -1."""
        out = call.copy()
        open_end = np.append(~wanted, False)  # in the last place: of no call
        climbing = np.flatnonzero(open_end.take(call))
        above: npt.NDArray[np.integer] = call.take(climbing)
        while len(climbing):
            above = self.parent.take(above)
            out[climbing] = above
            further = np.flatnonzero(open_end.take(above))
            climbing, above = climbing.take(further), above.take(further)
        return out

    def inside_of_same(self, group: npt.NDArray[np.integer], *, only: Mask | None = None) -> tuple[Int64s, Int64s]:
        """Return pairs (call, caller around it) of the same group, the innermost such caller for each call."""
        call = np.flatnonzero(self.parent >= 0 if only is None else only)
        above, mine = self.parent.take(call), group.take(call)
        pairs = [np.empty((2, 0), np.int64)]
        while len(left := np.flatnonzero(above >= 0)):
            call, above, mine = call.take(left), above.take(left), mine.take(left)
            same = group.take(above) == mine
            found = np.flatnonzero(same)
            pairs.append(np.stack((call.take(found), above.take(found))))
            above = np.where(same, -1, self.parent.take(above))
        calls, callers = np.concatenate(pairs, axis=1)
        return calls, callers

    def innermost_at(self, thread: Int64s, moment_ns: Int64s) -> Int64s:
        """Return the innermost call that was open on a thread at a moment, -1 where there was none."""
        last = np.full(len(moment_ns), -1, np.int64)
        if not len(self):
            return last
        for one in distinct(thread):
            mine = np.flatnonzero(thread == one)
            calls = self.of_thread(int(one))
            started = np.searchsorted(self.start_ns[calls], moment_ns[mine], side="right")
            last[mine] = np.where(started > 0, calls.start + started - 1, -1)
        while (over := (last >= 0) & (self.end_ns[last] < moment_ns)).any():
            last[over] = self.parent[last[over]]
        return last

    def _indices_of_parents(self) -> npt.NDArray[np.intp]:
        return self.parent.astype(np.intp)

    def _next_start(self) -> Int64s:
        forever = np.iinfo(np.int64).max
        until = np.append(self.start_ns[1:], forever)[: len(self)]
        until[np.flatnonzero(self.thread[1:] != self.thread[:-1])] = forever
        return until


@once_per_record
def host_calls(rank: Rank) -> HostCalls:
    """Return the operators of a rank with their callers."""
    return call_stacks(rank.trace, np.flatnonzero(of_kinds(rank.kinds, (EventKind.HOST_OP,))))


def call_stacks(trace: Trace, row: Rows) -> HostCalls:
    """Return events of the host, given by their rows, with their callers among them."""
    start = trace["ts_ns"].take(row)
    order, thread, start, end = stacked(trace["tid"].take(row), start, start + trace["dur_ns"].take(row))
    row = row.take(order)
    return HostCalls(
        row=row.astype(np.int32),
        name=trace["name"].take(row),
        thread=thread,
        start_ns=start,
        end_ns=end,
        parent=call_stack_parents(thread, start, end).astype(np.int32),
    )


def spans(rank: Rank, rows: npt.NDArray[np.integer]) -> Intervals:
    """Return the time that event rows cover."""
    start = rank.trace["ts_ns"][rows]
    return union(start, start + rank.trace["dur_ns"][rows])


def sum_by(index: npt.NDArray[np.integer], values: Floats, count: int) -> Floats:
    """Return the sum of the values of each index from 0 to `count`; those at -1 belong to nobody."""
    mine = index >= 0
    if not mine.all():
        index, values = index[mine], values[mine]
    return np.bincount(index, values, minlength=count).astype(np.float64, copy=False)


# Which operators of the host compute while they run, and do not wait?
#
# A communication call computes nothing, and what is around it (an autograd node, a function that reduces activations)
# may
# spend its time waiting: gloo runs the collective on a thread of its own, and nothing is recorded while the caller
# waits
# for it. So operators around a call do not count as running; those inside them do.

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


# Which calls into the device's runtime or driver did the host make, and what does each do to it?
#
# The latter is told by its name, CUDA and HIP alike.

_SYNCHRONISATION = re.compile(
    r"Synchronize|^(cuda|hip|cu)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|WithStream|DtoH|HtoD)?(_v2)?$"
)
_ALLOCATION = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister"
    r"|Mem(Alloc|Free|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess|HostAlloc|Pool\w*))"
)


def is_synchronisation(name: str) -> bool:
    """Return whether a call blocks the host until the device has caught up.

    >>> [is_synchronisation(s) for s in ("cudaStreamSynchronize", "cudaMemcpy", "cudaMemcpyAsync")]
    [True, True, False]
    """
    return bool(_SYNCHRONISATION.search(name))


def is_allocation(name: str) -> bool:
    """Return whether a call gets or returns memory of the device, or host memory that the device can reach.

    >>> [is_allocation(s) for s in ("cudaMalloc", "hipFree", "cuMemMap", "cudaMemcpyAsync")]
    [True, True, True, False]
    """
    return bool(_ALLOCATION.search(name))


@once_per_record
def runtime_rows(rank: Rank) -> Rows:
    """Return the rows of all calls."""
    return np.flatnonzero(of_kinds(rank.kinds, (EventKind.RUNTIME,)))


@once_per_record
def runtime_starts(rank: Rank) -> Int64s:
    """Return when the calls began, ascending."""
    return np.sort(rank.trace["ts_ns"][runtime_rows(rank)], kind="stable")  # nearly sorted already


@once_per_record
def synchronisations(rank: Rank) -> Rows:
    """Return the rows of the calls that block the host until the device has caught up."""
    return rank.rows_named(is_synchronisation, EventKind.RUNTIME)


@once_per_record
def allocations(rank: Rank) -> Rows:
    """Return the rows of the calls that get or return memory."""
    return rank.rows_named(is_allocation, EventKind.RUNTIME)
