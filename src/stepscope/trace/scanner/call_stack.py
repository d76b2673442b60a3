"""Call-stack parents of events, by a real stack in the scanner's module."""

from collections import deque

import numpy as np
import numpy.typing as npt

from stepscope.trace.scanner.wasm import Instance, MemoryLimitError

CHUNK_ROWS = 1 << 16
"""as in call_stack.h"""
_IDLE: deque[Instance] = deque(maxlen=4)
"""instances that are asked again: to make one takes longer than most stacks"""


def stack_order(
    thread: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    then: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.intp]:
    """Return rows by thread, start, end descending, and `then` at last, as `call_stack_parents` wants them.

    Rows come nearly sorted by start, which sorting by ends first would undo; so only those that start together are
    sorted by their ends.
    """
    order = np.lexsort((start, thread))
    first, second = order[:-1], order[1:]
    together = (start[first] == start[second]) & (thread[first] == thread[second])
    if together.any():
        tied = np.flatnonzero(np.append(together, False) | np.append(False, together))
        group = np.cumsum(~np.append(False, together))[tied]
        rows = order[tied]
        keys = (-end[rows], group) if then is None else (then[rows], -end[rows], group)
        order[tied] = rows[np.lexsort(keys)]
    return order


def call_stack_parents(
    thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return for each row the innermost row of its thread that encloses it, or -1.

    Rows must be sorted by (thread, start, end descending). Of equal intervals the earlier row is the parent. An
    interval that begins where another ends is not enclosed by it. Where A and B cross (A starts first and ends
    inside B), neither is the other's child, and what lies in both belongs to B.
    """
    if not len(thread):
        return np.empty(0, np.int64)
    try:
        wasm = _IDLE.pop()
    except IndexError:  # all are at work on other threads
        wasm = Instance()
    parents = _parents(wasm, thread, start, end)
    _IDLE.append(wasm)
    return parents


def _parents(
    wasm: Instance, thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    chunk = wasm.call("stack_chunk")
    parents = np.empty(len(thread), np.int64)
    for first in range(0, len(thread), CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, len(thread)))
        count = rows.stop - rows.start
        for i, column in enumerate((thread, start, end)):
            wasm.view(chunk + i * CHUNK_ROWS * 8, "int64", count)[:] = column[rows]
        if not wasm.call("stack_parents", count, first):
            raise MemoryLimitError("call stack too deep: 100 million events or more lie inside each other")
        parents[rows] = wasm.view(chunk + 3 * CHUNK_ROWS * 8, "int64", count)
    return parents
