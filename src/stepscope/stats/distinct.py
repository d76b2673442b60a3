"""Each value once, in order. As `np.unique` without indices or counts, which imports numpy's masked arrays first."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_Kind = TypeVar("_Kind", bound=np.generic)

# slots for each value up to which a table of all possible values is quicker than sorting them
_MAX_SPREAD = 32


def distinct(values: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """Return each value once, ascending.

    >>> distinct(np.array([7, -2, 7, 30])).tolist()
    [-2, 7, 30]
    """
    if not len(values):
        return values[:0].copy()
    if values.dtype.kind == "i":
        low, high = int(values.min()), int(values.max())
        if high - low <= _MAX_SPREAD * len(values):
            there = np.zeros(high - low + 1, bool)
            there[np.subtract(values, low, dtype=np.int64)] = True
            return (np.flatnonzero(there) + low).astype(values.dtype)
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]


def distinct_places(values: npt.NDArray[_Kind]) -> tuple[npt.NDArray[_Kind], npt.NDArray[np.intp]]:
    """Return each value once, ascending, and where each of the values is among them.

    As `np.unique` with its inverse, by a merge sort: for values that are a few runs that ascend already.

    >>> [x.tolist() for x in distinct_places(np.array([7, -2, 7, 30]))]
    [[-2, 7, 30], [1, 0, 1, 2]]
    """
    order = np.argsort(values, kind="stable")
    ordered = values.take(order)
    fresh = np.append(True, ordered[1:] != ordered[:-1])[: len(values)]
    place = np.empty(len(values), np.intp)
    place[order] = np.cumsum(fresh) - 1
    return ordered[fresh], place


def numbered(values: npt.NDArray[_Kind]) -> tuple[npt.NDArray[_Kind], npt.NDArray[np.int64]]:
    """Return each value once, ascending, and where each of the values is among them: for few values, in any order.

    >>> [x.tolist() for x in numbered(np.array([7, -2, 7, 30]))]
    [[-2, 7, 30], [1, 0, 1, 2]]
    """
    low, high = (int(values.min()), int(values.max())) if len(values) and values.dtype.kind == "i" else (0, 0)
    if high == low or high - low > _MAX_SPREAD * len(values):
        once = distinct(values)
        return once, np.searchsorted(once, values)
    slot = np.subtract(values, low, dtype=np.intp)
    there = np.zeros(high - low + 1, bool)
    there[slot] = True
    return (np.flatnonzero(there) + low).astype(values.dtype), (np.cumsum(there) - 1).take(slot)


def union_of_values(*several: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """Return each value that is in any of them once, ascending."""
    return distinct(np.concatenate(several))


def common(a: npt.NDArray[_Kind], b: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """Return each value that is in both once, ascending.

    >>> common(np.array([3, 1, 3]), np.array([3, 2])).tolist()
    [3]
    """
    once, other = distinct(a), distinct(b)
    both = np.sort(np.concatenate((once, other)))
    return both[1:][both[1:] == both[:-1]]


def among(values: npt.NDArray[np.integer], wanted: npt.NDArray[np.integer] | Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which values are among those wanted: rows of a table in the time that reading them takes.

    >>> among(np.array([5, 2, 9]), np.array([9, 5])).tolist()
    [True, False, True]
    """
    if not len(wanted) or not len(values):
        return np.zeros(len(values), bool)
    if len(wanted) <= 8:
        first, *others = (int(one) for one in wanted)  # numbers of Python's own: others widen the values to 64 bits
        out = values == first
        for one in others:
            out |= values == one
        return out
    wanted = np.asarray(wanted)
    low, high = int(wanted.min()), int(wanted.max())
    if high - low > _MAX_SPREAD * (len(values) + len(wanted)):
        once = distinct(wanted)
        return once[np.minimum(np.searchsorted(once, values), len(once) - 1)] == values
    there = np.zeros(high - low + 2, bool)  # in the last place: what lies outside
    there[np.subtract(wanted, low, dtype=np.int64)] = True
    return there[np.where((values >= low) & (values <= high), np.subtract(values, low, dtype=np.int64), -1)]


def distinct_rows(table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return each row of a table once, in order.

    >>> distinct_rows(np.array([[2, 1], [1, 5], [2, 1]])).tolist()
    [[1, 5], [2, 1]]
    """
    return np.unique(table, axis=0, return_index=True)[0]
