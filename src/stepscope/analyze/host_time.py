"""What was the host doing between two moments: working, loading data, allocating, stalling, or blocked?

Blocked time is the device's doing (a synchronisation, a full queue) and is not the host's own. Stalls are long
stretches in which no thread of the host has anything recorded although the loop is not loading data: garbage
collection, logging, checkpointing, a lock, sleep; and operators that compute on the host and launch nothing.
"""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.contract.step_line import Region, named_region, prepares_input
from stepscope.intervals import Intervals, complement, covered_ns, intersect, subtract, union, union_by, union_of
from stepscope.records import ArrayRecord, dataclass, once_per_record
from stepscope.run.collectives import RECORD
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.robust import among, distinct, distinct_places, union_of_values
from stepscope.trace.scanner import call_stack_parents, stacked
from stepscope.trace.table import EventKind, Int64s, Trace, by_string, of_kinds, rows_named

# Who called whom on the host: the operators of a rank as call stacks, one per thread.
#
# Operators of one thread nest. Where two cross, which only broken clocks or asynchronous ranges do, their overlap
# belongs to the later one, so no moment of a thread is counted twice.

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
        """Return the slice of a thread's calls, ordered by start."""
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


@once_per_record
def records_operators(rank: Rank) -> bool:
    """Return whether any operator of the host is in the trace."""
    return bool(of_kinds(rank.kinds, (EventKind.HOST_OP,)).any())


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
    """Return the sum of the values of each index from 0 to `count`; those at -1 are ignored."""
    mine = index >= 0
    if not mine.all():
        index, values = index[mine], values[mine]
    return np.bincount(index, values, minlength=count).astype(np.float64, copy=False)


# Which operators of the host compute while they run, and do not wait?
#
# A communication call computes nothing, and what is around it (an autograd node, a function that reduces activations)
# may spend its time waiting: gloo runs the collective on its own thread, and nothing is recorded while the caller
# waits. So operators around a call do not count as running; those inside them do.

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


# Calls into the device's runtime or driver, classified by name (CUDA and HIP).

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


# Which operators computed on the host itself, for long, while the device got nothing to do, and when did the rest run?
#
# An operator that launches work takes microseconds. One that runs for a millisecond without a call into the device's
# runtime computes on host tensors: a mask, a statistic, a tokeniser. Nothing is launched meanwhile, so for the device
# it is equivalent to a stall.

# python between two operators takes microseconds; where nothing is recorded for less than this nothing stalls
MIN_HOLE_NS = 1_000_000
# a hole in what the host recorded from which it did something else; ordinary python stays below 2 ms
STALL_NS = 3_000_000


@once_per_record
def launching_spans(rank: Rank) -> dict[int, Intervals]:
    """Return by thread when the host ran anything that it recorded of itself, less the operators that only compute.

    Holes shorter than MIN_HOLE_NS are closed.
    """
    trace, ops, calls = rank.trace, host_calls(rank), runtime_rows(rank)
    launching = _outermost(ops, computing_operators(rank))
    called = trace["ts_ns"].take(calls)
    # Each separately first: its rows are nearly in order, and few spans are left to unite with the other's.
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
    first = _first_of_runs(thread)
    threads, number = distinct_places(thread[first])
    of, ran = union_by(np.repeat(number, np.diff(first, append=len(thread))), start, end, gap_ns=MIN_HOLE_NS)
    return threads[of], *ran


def _first_of_runs(values: Int64s) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


def _outermost(ops: HostCalls, without: Rows) -> npt.NDArray[np.intp]:
    if not len(without):
        return np.flatnonzero(ops.parent < 0)
    left_out = among(ops.row, without)
    return np.flatnonzero(((ops.parent < 0) | left_out[ops.parent]) & ~left_out)


@once_per_record
def computing_operators(rank: Rank) -> Rows:
    """Return the rows of these operators; none for a rank without a device, whose operators are its work."""
    return operators_without_calls(rank) if rank.has_device else np.empty(0, np.int64)


def operators_without_calls(rank: Rank) -> Rows:
    """Return the rows of operators that run for a millisecond or more without a call into the device's runtime."""
    trace = rank.trace
    rows = np.flatnonzero(trace["dur_ns"] >= 1_000_000)
    rows = rows[rank.kinds[rows] == EventKind.HOST_OP]
    if not len(rows):
        return rows
    calls, start = runtime_starts(rank), trace["ts_ns"][rows]
    holds_call = np.searchsorted(calls, start + trace["dur_ns"][rows]) > np.searchsorted(calls, start)
    return rows[~holds_call]


# a runtime call that takes longer waited for room in a full queue ...
_FULL_QUEUE_NS = 500_000
_SLOW_LAUNCH_NS = 50_000
# ... and so did a launch that takes this long while this number of others was still waiting to run
_DEEP_QUEUE = 100
# a hole in what the host recorded is a stall ...
_MIN_STALL_NS = MIN_HOLE_NS
# ... where it is this share of a step at least, or so long that the budget has it as one (STALL_NS)
_MIN_STALL_SHARE = 0.05

# that are quicker counted one by one than sorted
_FEW_RUNS = 256

# what recording one host event costs, about, where nothing better is known
RECORDING_COST_NS = 2_000


@dataclass(frozen=True, eq=False, repr=False)
class HostParts(ArrayRecord):
    """Host time of successive spans by what the host did, in ns; blocked time is in none of them."""

    #: running operators, launching, python in between
    own_ns: Int64s
    data_ns: Int64s
    allocator_ns: Int64s
    stall_ns: Int64s

    @property
    def total_ns(self) -> Int64s:
        return self.own_ns + self.data_ns + self.allocator_ns + self.stall_ns

    def part(self, which: slice) -> "HostParts":
        return HostParts(*(getattr(self, f.name)[which] for f in fields(self)))

    def plus_own(self, more_ns: Int64s) -> "HostParts":
        return replace(self, own_ns=self.own_ns + more_ns)


@dataclass(frozen=True)
class Activities:
    """When the host did what, no moment twice; the rest is its own work."""

    blocked: Intervals
    data: Intervals
    allocator: Intervals
    stall: Intervals

    def parts(self, start: Int64s, end: Int64s) -> HostParts:
        data, allocator, stall = (covered_ns(x, start, end) for x in (self.data, self.allocator, self.stall))
        own = end - start - covered_ns(self.blocked, start, end) - data - allocator - stall
        return HostParts(np.maximum(own, 0), data, allocator, stall)

    def parts_within(self, within: Intervals, start: Int64s, end: Int64s) -> HostParts:
        inside = Activities(*(intersect(x, within) for x in (self.blocked, self.data, self.allocator, self.stall)))
        parts = inside.parts(start, end)
        return replace(parts, own_ns=parts.own_ns - (end - start - covered_ns(within, start, end)))


@once_per_record
def activities(rank: Rank) -> Activities:
    """Return when the host of a rank with a device was blocked, loaded data, allocated or stalled."""
    taken = blocked = union(*blocked_host(rank))
    parts = []
    for activity in (data_loading(rank), spans(rank, allocations(rank)), stalling(rank)):
        fresh = subtract(activity, taken)
        taken = union_of(taken, fresh)
        parts.append(fresh)
    return Activities(blocked, *parts)


def host_parts(rank: Rank, start: Int64s, end: Int64s) -> HostParts:
    """Return what the host did in each span `[start, end)`."""
    return activities(rank).parts(start, end)


def blocked_host(rank: Rank, *, synchronisations_only: bool = False) -> tuple[Int64s, Int64s]:
    """Return start and end of the calls in which the host waited for the device, by start."""
    start, end, _ = blocking_calls(rank, synchronisations_only=synchronisations_only)
    return start, end


def blocking_calls(rank: Rank, *, synchronisations_only: bool = False) -> tuple[Int64s, Int64s, Int64s]:
    """Return start, end and row of the calls in which the host waited for the device, by start.

    Synchronisations, copies from or to pageable memory (they return when the data has moved), and calls that took
    long because the queue was full. A long call while the device is idle (a graph's launch, loading a module) is the
    host's own.
    """
    return _synchronisations(rank) if synchronisations_only else _all_blocking(rank)


# of a call that frees memory; 1 of one that gets it
_FREES = 2
# start, end and row
Calls = tuple[Int64s, Int64s, Int64s]


@once_per_record
def _synchronisations(rank: Rank) -> Calls:
    return _by_start(rank, _waiting_calls(rank))


@once_per_record
def _all_blocking(rank: Rank) -> Calls:
    trace = rank.trace
    calls = runtime_rows(rank)
    long = calls[trace["dur_ns"][calls] > _FULL_QUEUE_NS]
    long = long[_device_had_work(rank, trace["ts_ns"][long])]
    rows = union_of_values(_waiting_calls(rank), rows_named(trace, long, lambda name: not is_allocation(name)))
    return _by_start(rank, union_of_values(rows, _throttled_launches(rank)))


def _waiting_calls(rank: Rank) -> Int64s:
    return union_of_values(synchronisations(rank), pageable_copies(rank))


def _by_start(rank: Rank, rows: Int64s) -> Calls:
    """Return these calls, and the waits before the cache of memory is emptied."""
    ts, dur = rank.trace["ts_ns"], rank.trace["dur_ns"]
    waits, frees = _emptied_caches(rank)
    start = np.concatenate((ts[rows], waits))
    end = np.concatenate((ts[rows] + dur[rows], ts[frees]))
    order = np.argsort(start, kind="stable")
    return start[order], end[order], np.concatenate((rows, frees))[order]


def _emptied_caches(rank: Rank) -> tuple[Int64s, Int64s]:
    """Return the calls that free memory after one that got none, and since when the allocator waits for the device: it
    does so before it empties its cache, in a call that the profiler does not record.
    """
    trace, (before, after) = rank.trace, calls_that_free(rank)
    since, until = (trace["ts_ns"] + trace["dur_ns"])[before], trace["ts_ns"][after]
    waited = ~by_string(trace, trace["name"][before], _frees).astype(bool) & (until - since > _FULL_QUEUE_NS)
    waited &= _device_had_work(rank, since)
    return since[waited], after[waited]


@once_per_record
def calls_that_free(rank: Rank) -> tuple[Int64s, Int64s]:
    """Return pairs of calls of the allocator, one directly after the other on a thread, of which one frees memory: it
    empties its cache.
    """
    trace, rows = rank.trace, allocations(rank)
    if not rows_named(trace, rows, _frees).size:
        return rows[:0], rows[:0]
    calls = runtime_rows(rank)
    calls = calls[np.lexsort((trace["ts_ns"][calls], trace["tid"][calls]))]
    kind = by_string(trace, trace["name"][calls], lambda name: is_allocation(name) + _frees(name))
    paired = (np.minimum(kind[1:], kind[:-1]) > 0) & (np.maximum(kind[1:], kind[:-1]) == _FREES)
    pair = np.flatnonzero(paired & (np.diff(trace["tid"][calls]) == 0))
    return calls[pair], calls[pair + 1]


def _frees(name: str) -> bool:
    return is_allocation(name) and "Free" in name


def _device_had_work(rank: Rank, when_ns: Int64s) -> npt.NDArray[np.bool_]:
    work = rank.work
    asked = np.where(work.launch_row >= 0, rank.trace["ts_ns"][work.launch_row], work.start_ns)
    begun, ended = (np.searchsorted(_sorted(x), when_ns) for x in (asked, work.end_ns))
    return begun > ended


def _throttled_launches(rank: Rank) -> Int64s:
    work, trace = rank.work, rank.trace
    known = np.flatnonzero(work.launch_row >= 0)
    launches = work.launch_row[known]
    slow = distinct(launches[trace["dur_ns"][launches] > _SLOW_LAUNCH_NS])
    when = trace["ts_ns"][slow]
    queued = np.searchsorted(_sorted(trace["ts_ns"][launches]), when) - np.searchsorted(work.start_ns[known], when)
    return slow[queued >= _DEEP_QUEUE]


def _sorted(moments: Int64s) -> Int64s:
    return np.sort(moments, kind="stable")


def pageable_copies(rank: Rank) -> Int64s:
    """Return the calls that copy from or to pageable memory."""
    work = rank.work
    copies = np.flatnonzero((work.kind == EventKind.COPY) & (work.launch_row >= 0))
    pageable = by_string(rank.trace, work.name[copies], lambda name: "Pageable" in name)
    return distinct(work.launch_row[copies[pageable.astype(bool)]])


@once_per_record
def data_loading(rank: Rank) -> Intervals:
    """Return when the loop was waiting for its next batch."""
    asks = rank.rows_named(lambda name: named_region(name) is Region.DATA, EventKind.ANNOTATION, EventKind.HOST_OP)
    return spans(rank, np.concatenate((asks, rank.rows_named(prepares_input, EventKind.PYTHON))))


def stalling(rank: Rank) -> Intervals:
    """Return the long stretches inside the recorded steps in which nothing of the host is recorded that launches.

    None where no operators are recorded: what the host did there is unknown.
    """
    if not len(rank.steps) or not records_operators(rank):
        return union([], [])
    recorded = launching_spans(rank).values()
    gaps = complement(union_of(*recorded), int(rank.steps.start_ns.min()), int(rank.steps.end_ns.max()))
    step_ns = float((rank.steps.end_ns - rank.steps.start_ns).mean())
    long = gaps.end - gaps.start >= min(STALL_NS, max(_MIN_STALL_NS, _MIN_STALL_SHARE * step_ns))
    return Intervals(gaps.start[long], gaps.end[long])


@once_per_record
def recorded_events(rank: Rank) -> Int64s:
    """Return how many host events each step holds, each of which took the host about RECORDING_COST_NS to record."""
    steps = rank.steps
    if not len(steps):
        return np.zeros(0, np.int64)
    edges = np.minimum(np.append(steps.start_ns, steps.end_ns.max()), steps.end_ns.max())
    operators = np.flatnonzero(of_kinds(rank.kinds, (EventKind.HOST_OP,)))
    before = [_before(rank.trace["ts_ns"].take(rows), edges) for rows in (operators, runtime_rows(rank))]
    return np.diff(np.sum(before, axis=0))


def _before(moments: Int64s, edges: Int64s) -> Int64s:
    cuts = np.flatnonzero(moments[1:] < moments[:-1]) + 1
    runs = np.split(moments, cuts) if len(cuts) <= _FEW_RUNS else [_sorted(moments)]
    return np.sum([np.searchsorted(run, edges) for run in runs], axis=0)
