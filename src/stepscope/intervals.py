"""Interval algebra on integer nanoseconds: union, intersection, difference, clipping.

An interval set is a pair of int64 arrays `(start, end)`, half open, sorted and disjoint once it went through
`union`. All functions are linear after one sort, return new sets, and never exceed the wall time they cover.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.stats.robust import distinct

Int64s = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Sorted, disjoint, half-open intervals in nanoseconds."""

    start: Int64s
    end: Int64s

    @property
    def total_ns(self) -> int:
        return int((self.end - self.start).sum())

    def __len__(self) -> int:  # number of intervals, not of fields
        return len(self.start)


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: npt.ArrayLike, end: npt.ArrayLike, *, gap_ns: int = 1) -> Intervals:
    """Return the union of any intervals; empty and inverted ones are dropped, touching ones merged.

    Gaps in it that are shorter than `gap_ns` are filled.

    >>> union([0, 5, 4], [2, 9, 6])
    Intervals(start=array([0, 4]), end=array([2, 9]))
    >>> union([0, 5, 20], [2, 9, 30], gap_ns=10)
    Intervals(start=array([ 0, 20]), end=array([ 9, 30]))
    """
    s = np.asarray(start, np.int64)
    e = np.asarray(end, np.int64)
    keep = e > s
    if not keep.all():
        s, e = s[keep], e[keep]
    if not len(s):
        return EMPTY
    if (s[1:] < s[:-1]).any():
        order = np.argsort(s, kind="stable")
        s, e = s[order], e[order]
    reach = np.maximum.accumulate(e)
    last = np.flatnonzero(s[1:] > reach[:-1] + (gap_ns - 1))
    return Intervals(np.concatenate((s[:1], s[last + 1])), np.concatenate((reach[last], reach[-1:])))


def union_of(*sets: Intervals) -> Intervals:
    """Return the union of several interval sets."""
    if not sets:
        return EMPTY
    return union(np.concatenate([x.start for x in sets]), np.concatenate([x.end for x in sets]))


def union_by(key: npt.NDArray[np.integer], start: Int64s, end: Int64s, *, gap_ns: int = 1) -> tuple[Int64s, Intervals]:
    """Return the union of the intervals of each key, and the key of each interval in it; keys, none below 0, ascend.

    One union over all, the intervals of each key moved to a place of their own. Gaps are filled as in `union`.

    >>> union_by(np.array([1, 0, 1]), np.array([0, 1, 2]), np.array([3, 4, 5]))
    (array([0, 1]), Intervals(start=array([1, 0]), end=array([4, 5])))
    """
    there = end > start
    if not there.all():
        key, start, end = key[there], start[there], end[there]
    if not len(key):
        return EMPTY.start, EMPTY
    key = key.astype(np.int64, copy=False)
    first, wide = int(start.min()), int(end.max()) - int(start.min()) + gap_ns
    if wide * (int(key.max()) + 1) > 1 << 62:  # times that no job has
        each = {one: union(start[key == one], end[key == one], gap_ns=gap_ns) for one in distinct(key).tolist()}
        of = np.repeat(np.array(list(each), np.int64), [len(x) for x in each.values()])
        return of, Intervals(*(np.concatenate(sides) for sides in zip(*each.values(), strict=True)))
    moved = key * wide - first
    covered = union(start + moved, end + moved, gap_ns=gap_ns)
    of = covered.start // wide
    back = of * wide - first
    return of, Intervals(covered.start - back, covered.end - back)


def clip(x: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the part of `x` within `[start_ns, end_ns)`."""
    if len(x) and start_ns <= x.start[0] and x.end[-1] <= end_ns:
        return x
    s = np.maximum(x.start, start_ns)
    e = np.minimum(x.end, end_ns)
    keep = e > s
    return Intervals(s[keep], e[keep])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time covered by both.

    >>> intersect(union([0], [10]), union([2, 8], [4, 12]))
    Intervals(start=array([2, 8]), end=array([ 4, 10]))
    """
    return intersect_each(a, b)[1]


def intersect_each(a: Intervals, b: Intervals) -> tuple[Int64s, Intervals]:
    """Return the time that each of any intervals shares with the set `b`, and which interval each piece is of."""
    if not len(a) or not len(b):
        return EMPTY.start, EMPTY
    # Each interval of `a` meets the run b[lo:hi]; expand the runs and cut each pair.
    lo = np.searchsorted(b.end, a.start, side="right")
    hi = np.searchsorted(b.start, a.end, side="left")
    count = np.maximum(hi - lo, 0)
    total = int(count.sum())
    if not total:
        return EMPTY.start, EMPTY
    ia = np.repeat(np.arange(len(a)), count)
    ib = np.arange(total) + np.repeat(lo - (np.cumsum(count) - count), count)
    return ia, Intervals(np.maximum(a.start[ia], b.start[ib]), np.minimum(a.end[ia], b.end[ib]))


def complement(x: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the time within `[start_ns, end_ns)` that `x` does not cover."""
    if end_ns <= start_ns:
        return EMPTY
    c = clip(x, start_ns, end_ns)
    s = np.concatenate(([start_ns], c.end))
    e = np.concatenate((c.start, [end_ns]))
    keep = e > s
    return Intervals(s[keep].astype(np.int64, copy=False), e[keep].astype(np.int64, copy=False))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time covered by `a` and not by `b`.

    >>> subtract(union([0], [10]), union([2], [4]))
    Intervals(start=array([0, 4]), end=array([ 2, 10]))
    """
    if not len(a) or not len(b):
        return a
    return intersect(a, complement(b, int(a.start[0]), int(a.end[-1])))


def covered_ns(x: Intervals, start: Int64s, end: Int64s) -> Int64s:
    """Return for each `[start, end)` how much of it `x` covers, by prefix sums."""
    if not len(x):
        return np.zeros(np.broadcast_shapes(np.shape(start), np.shape(end)), np.int64)
    so_far = np.cumsum(x.end - x.start)

    def before(t: Int64s) -> Int64s:
        i = np.searchsorted(x.start, t, side="right") - 1  # -1 before the first: its value does not count
        return np.where(i >= 0, so_far[i] - np.maximum(x.end[i] - t, 0), 0)

    return before(np.asarray(end, np.int64)) - before(np.asarray(start, np.int64))
