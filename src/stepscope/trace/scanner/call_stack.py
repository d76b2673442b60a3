"""Call-stack parents of events: by a real stack in the scanner's module, of few events without it."""

import atexit
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.stats.distinct import distinct_places

if TYPE_CHECKING:
    from stepscope.trace.scanner.wasm import Instance

# as in call_stack.h
CHUNK_ROWS = 1 << 15
# instances that are asked again: to make one takes longer than most stacks
_IDLE: "deque[Instance]" = deque(maxlen=4)
atexit.register(_IDLE.clear)  # later, what frees their memory is gone


class Stacked(NamedTuple):
    """Rows by thread, start and end descending, as `call_stack_parents` wants them."""

    #: where each of them was
    order: npt.NDArray[np.intp]
    thread: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


def stacked(
    thread: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    then: npt.NDArray[np.bool_] | None = None,
) -> Stacked:
    """Return rows by thread, start, end descending, and `then` at last.

    Rows come nearly sorted by start, which sorting by ends first would undo; so only those that start together are
    sorted by their ends.
    """
    order = _by_thread_and_start(thread, start)
    thread, start = thread.take(order), start.take(order)
    together = start[1:] == start[:-1]
    together &= thread[1:] == thread[:-1]
    if together.any():
        tied = np.flatnonzero(np.append(together, False) | np.append(False, together))
        group = np.cumsum(~np.append(False, together))[tied]
        rows = order[tied]
        keys = (-end[rows], group) if then is None else (then[rows], -end[rows], group)
        order[tied] = rows[np.lexsort(keys)]
    return Stacked(order, thread, start, end.take(order))


def _by_thread_and_start(thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    first = np.flatnonzero(np.append(True, thread[1:] != thread[:-1])[: len(thread)])  # rows of a thread come together
    of_run = distinct_places(thread[first])[1]
    wide = int(start.max(initial=0)) - int(start.min(initial=0)) + 1
    if wide * (int(of_run.max(initial=0)) + 1) > 1 << 62:  # times that no job has
        return np.lexsort((start, thread))
    moved = np.repeat(of_run * wide, np.diff(first, append=len(thread)))
    moved += start
    return np.argsort(moved, kind="stable")


def call_stack_parents(
    thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return for each row the innermost row of its thread that encloses it, or -1.

    Rows must be sorted as `stacked` does. Of equal intervals the earlier row is the parent. An interval that begins
    where another ends is not enclosed by it. Where A and B cross (A starts first and ends inside B), neither is the
    other's child, and what lies in both belongs to B.
    """
    if not len(thread):
        return np.empty(0, np.int64)
    try:
        wasm = _IDLE.pop()
    except IndexError:  # there is none yet, or all are at work on other threads
        few = _parents_of_few(thread, start, end) if len(thread) <= 1 << 13 else None
        if few is not None:
            return few
        from stepscope.trace.scanner.wasm import Instance  # few rows never need it

        wasm = Instance()
    parents = _parents_by_stack(wasm, thread, start, end)
    _IDLE.append(wasm)
    return parents


def _parents_of_few(
    thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    """Return the same where that takes less than to make an instance, None where rows lie too deep in each other.

    Every row asks the one before it, and where that one does not enclose it, the one which that one asks: between the
    two lies none that encloses it, as there is none that encloses both.
    """
    parent = np.arange(-1, len(thread) - 1)
    asking = np.arange(len(thread))
    for _ in range(64):
        asked = parent.take(asking)
        other = thread[asked] != thread[asking]
        asked[other] = parent[asking[other]] = -1
        from_ns, to_ns = start.take(asking), end[asked]
        encloses = (end.take(asking) <= to_ns) & ((from_ns < to_ns) | (from_ns == start[asked]))
        left = np.flatnonzero((asked >= 0) & ~encloses)
        if not len(left):
            return parent
        asking = asking.take(left)
        parent[asking] = parent.take(asked.take(left))
    return None


def _parents_by_stack(
    wasm: "Instance", thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    chunk = wasm.call("stack_chunk")
    parents = np.empty(len(thread), np.int64)
    for first in range(0, len(thread), CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, len(thread)))
        count = rows.stop - rows.start
        for i, column in enumerate((thread, start, end)):
            wasm.view(chunk + i * CHUNK_ROWS * 8, "int64", count)[:] = column[rows]
        if not wasm.call("stack_parents", count, first):
            from stepscope.trace.scanner.wasm import MemoryLimitError

            raise MemoryLimitError("call stack too deep: 100 million events or more lie inside each other")
        parents[rows] = wasm.view(chunk + 3 * CHUNK_ROWS * 8, "int64", count)
    return parents
