"""Interval algebra against a plain oracle: the set of whole nanoseconds that an interval set covers."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepscope.intervals import (
    Intervals,
    clip,
    complement,
    covered_ns,
    intersect,
    intersect_each,
    subtract,
    union,
    union_by,
)

MOMENT = st.integers(-20, 40)
RAW = st.lists(st.tuples(MOMENT, MOMENT), max_size=12)  # any order, overlapping, touching, empty, inverted


def of(raw: list[tuple[int, int]]) -> Intervals:
    return union([a for a, _ in raw], [b for _, b in raw])


def moments(raw: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in raw for t in range(a, b)}


def covered(x: Intervals) -> set[int]:
    return moments(list(zip(x.start.tolist(), x.end.tolist(), strict=True)))


def assert_is(x: Intervals, expected: set[int]) -> None:
    """Assert that `x` covers exactly `expected`, in the one normal form: sorted, disjoint, nothing empty."""
    assert covered(x) == expected
    assert x.total_ns == len(expected)
    assert (x.end > x.start).all()
    assert (x.start[1:] >= x.end[:-1]).all()
    assert x.start.dtype == x.end.dtype == np.int64


@given(RAW)
def test_union_covers_every_moment_once(raw: list[tuple[int, int]]) -> None:
    assert_is(of(raw), moments(raw))


@pytest.mark.parametrize("scale", [1, 1 << 55])
@given(st.lists(st.tuples(st.integers(0, 3), MOMENT, MOMENT), max_size=12), st.integers(1, 10))
def test_union_of_each_key(scale: int, keyed: list[tuple[int, int, int]], gap: int) -> None:
    key, start, end = (np.array([row[i] for row in keyed], np.int64) for i in range(3))
    of_key, x = union_by(key, start * scale, end * scale, gap_ns=gap * scale)
    assert (of_key[1:] >= of_key[:-1]).all()
    for one in range(4):
        mine, expected = of_key == one, union(scale * start[key == one], scale * end[key == one], gap_ns=gap * scale)
        assert x.start[mine].tolist() == expected.start.tolist() and x.end[mine].tolist() == expected.end.tolist()


@given(RAW, st.integers(1, 10))
def test_short_gaps_are_filled_and_long_ones_stay(raw: list[tuple[int, int]], gap: int) -> None:
    x = of(raw)
    y = union(*zip(*raw, strict=True), gap_ns=gap) if raw else x
    assert (y.start[1:] - y.end[:-1] >= gap).all()
    assert covered(x) <= covered(y)
    long = x.start[1:] - x.end[:-1] >= gap
    assert y.end[:-1].tolist() == x.end[:-1][long].tolist() and y.start[1:].tolist() == x.start[1:][long].tolist()


@given(RAW, RAW)
def test_pieces_of_any_intervals_in_a_set(raw: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    raw = [(min(s), max(s)) for s in raw if s[0] != s[1]]
    a = Intervals(*(np.array([s[i] for s in raw], np.int64) for i in (0, 1)))
    which, pieces = intersect_each(a, of(b))
    for i, one in enumerate(raw):
        assert_is(Intervals(pieces.start[which == i], pieces.end[which == i]), moments([one]) & moments(b))


@given(RAW, RAW)
def test_intersection_and_overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert_is(intersect(of(a), of(b)), moments(a) & moments(b))
    assert intersect(of(a), of(b)).total_ns == len(moments(a) & moments(b))


@given(RAW, RAW)
def test_difference(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert_is(subtract(of(a), of(b)), moments(a) - moments(b))


@given(RAW, MOMENT, MOMENT)
def test_clip_and_complement_split_a_window(raw: list[tuple[int, int]], start: int, end: int) -> None:
    window = set(range(start, end))
    assert_is(clip(of(raw), start, end), moments(raw) & window)
    assert_is(complement(of(raw), start, end), window - moments(raw))


@given(RAW, RAW)
def test_covered_time_of_each_span(raw: list[tuple[int, int]], spans: list[tuple[int, int]]) -> None:
    spans = [(min(s), max(s)) for s in spans]
    start, end = (np.array([s[i] for s in spans], np.int64) for i in (0, 1))
    expected = [len(moments(raw) & set(range(a, b))) for a, b in spans]
    assert covered_ns(of(raw), start, end).tolist() == expected


@pytest.mark.parametrize("base", [0, 1_800_000_000_000_000_000, -(2**62)])
def test_times_since_1970_stay_exact(base: int) -> None:
    x = union([base + 5, base + 1], [base + 9, base + 2])
    assert (x.start - base).tolist() == [1, 5]
    assert covered_ns(x, np.array([base]), np.array([base + 7])).tolist() == [3]
    assert complement(x, base, base + 10).total_ns == 5
