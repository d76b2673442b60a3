"""Who called whom on the host: the operators of a rank as call stacks, one per thread.

Operators of one thread nest. Where two cross, which only broken clocks or asynchronous ranges do, what lies in both
belongs to the later one, so that no moment of a thread is counted twice.
"""

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind
from stepscope.trace.scanner import call_stack_parents, stack_order
from stepscope.trace.table import Int64s, Trace

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]
"""indices of rows: a rank has far fewer than two billion, and these columns stay as long as the report is made"""


@dataclass(frozen=True, eq=False, repr=False)
class HostCalls(ArrayRecord):
    """Operators by thread, then start, callers before what they call. Indices are into this table, -1 for none."""

    row: Places
    """in the event table"""
    name: npt.NDArray[np.int32]
    thread: Int64s
    start_ns: Int64s
    end_ns: Int64s
    parent: Places

    def __len__(self) -> int:
        return len(self.row)

    def at_rows(self, rows: npt.NDArray[np.integer]) -> Int64s:
        """Return the indices of event rows; -1 for rows that are no call here, and for -1."""
        end = int(self.row.max(initial=-1)) + 1
        index_of_row = np.full(end + 1, -1, np.int32)  # in the last place: of no row
        index_of_row[self.row] = np.arange(len(self))
        return index_of_row[np.where((rows >= 0) & (rows < end), rows, end)].astype(np.int64)

    def self_ns(self) -> Int64s:
        """Return the time in which each call was the innermost of its thread. The sum is the threads' busy time."""
        out = np.zeros(len(self), np.int64)
        current: npt.NDArray[np.integer] = np.arange(len(self))
        moment, until = self.start_ns.copy(), self._next_start()
        while len(current):  # from each start to the next one, up the callers that are still open
            stop = np.maximum(np.minimum(self.end_ns[current], until), moment)
            np.add.at(out, current, stop - moment)
            current = self.parent[current]
            still = (current >= 0) & (stop < until)
            current, moment, until = current[still], stop[still], until[still]
        return out

    def with_called(self, values: Floats) -> Floats:
        """Return each call's value plus those of everything it called, directly or not."""
        out = values.copy()
        current: npt.NDArray[np.integer] = np.flatnonzero(values)
        carried = values[current]
        current = self.parent[current]
        while (inside := current >= 0).any():
            current, carried = current[inside], carried[inside]
            np.add.at(out, current, carried)
            current = self.parent[current]
        return out

    def nearest(self, wanted: Mask) -> Int64s:
        """Return for each call the innermost wanted one among itself and its callers, -1 where there is none."""
        none = len(self)
        up = np.append(np.where(wanted, np.arange(none), np.where(self.parent >= 0, self.parent, none)), none)
        while True:
            further = up[up]  # reaches twice as far each time
            if np.array_equal(further, up):
                break
            up = further
        return np.where(up[:-1] == none, -1, up[:-1])

    def inside_of_same(self, group: npt.NDArray[np.integer], *, only: Mask | None = None) -> tuple[Int64s, Int64s]:
        """Return pairs (call, caller around it) of the same group, the innermost such caller for each call."""
        call = np.arange(len(self)) if only is None else np.flatnonzero(only)
        above = self.parent[call]
        calls, callers = [], []
        while len(call):
            inside = above >= 0
            call, above = call[inside], above[inside]
            same = group[above] == group[call]
            calls.append(call[same])
            callers.append(above[same])
            call, above = call[~same], self.parent[above[~same]]
        empty = [np.empty(0, np.int64)]
        return np.concatenate(calls or empty), np.concatenate(callers or empty)

    def innermost_at(self, thread: Int64s, moment_ns: Int64s) -> Int64s:
        """Return the innermost call that was open on a thread at a moment, -1 where there was none."""
        last = np.full(len(moment_ns), -1, np.int64)
        if not len(self):
            return last
        for one in distinct(thread):
            mine = np.flatnonzero(thread == one)
            low, high = np.searchsorted(self.thread, [one, one + 1])  # a thread's calls lie together
            started = np.searchsorted(self.start_ns[low:high], moment_ns[mine], side="right")
            last[mine] = np.where(started > 0, low + started - 1, -1)
        while (over := (last >= 0) & (self.end_ns[last] < moment_ns)).any():
            last[over] = self.parent[last[over]]
        return last

    def _next_start(self) -> Int64s:
        """Return when the next call of the same thread starts, the far future for the last."""
        forever = np.iinfo(np.int64).max
        until = np.append(self.start_ns[1:], forever)[: len(self)]
        until[np.flatnonzero(self.thread[1:] != self.thread[:-1])] = forever
        return until


def host_calls(rank: Rank) -> HostCalls:
    """Return the operators of a rank with their callers."""
    return call_stacks(rank.trace, np.flatnonzero(rank.kinds == EventKind.HOST_OP))


def call_stacks(trace: Trace, row: Rows) -> HostCalls:
    """Return events of the host, given by their rows, with their callers among them."""
    thread, start = trace["tid"][row], trace["ts_ns"][row]
    end = start + trace["dur_ns"][row]
    order = stack_order(thread, start, end)
    row, thread, start, end = row[order], thread[order], start[order], end[order]
    return HostCalls(
        row=row.astype(np.int32),
        name=trace["name"][row],
        thread=thread,
        start_ns=start,
        end_ns=end,
        parent=call_stack_parents(thread, start, end).astype(np.int32),
    )


def sum_by(index: npt.NDArray[np.integer], values: Floats, count: int) -> Floats:
    """Return the sum of the values of each index from 0 to `count`; those at -1 belong to nobody."""
    mine = index >= 0
    if not mine.all():
        index, values = index[mine], values[mine]
    return np.bincount(index, values, minlength=count).astype(np.float64, copy=False)
