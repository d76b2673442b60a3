"""Sequences laid over each other in flat arrays give what laying them one by one gives."""

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.run.matching import NO_STEP, mad_sigmas, median_times, medians, shared_columns
from stepscope.stats.robust import mad_sigma

Call = tuple[int, int, int, int]
"""key, step, member, signature"""
CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=40)


def one_by_one(calls: list[Call]) -> set[tuple[int, tuple[int, ...]]]:
    """Return `(step, entries)` of every column, by loops."""
    out = set()
    for key in {c[0] for c in calls}:
        entries = [i for i, c in enumerate(calls) if c[0] == key]
        steps = {calls[i][1] for i in entries}
        shared = [s for s in steps if len({calls[i][2] for i in entries if calls[i][1] == s}) > 1]
        whole = {NO_STEP: sorted(entries, key=lambda i: calls[i][1])}
        blocks = {s: [i for i in entries if calls[i][1] == s] for s in shared} or whole
        for step, block in blocks.items():
            by_member = {
                m: list(g) for m, g in groupby(sorted(block, key=lambda i: calls[i][2]), key=lambda i: calls[i][2])
            }
            out |= {(step, column) for column in columns_of(calls, by_member)}
    return out


def columns_of(calls: list[Call], by_member: dict[int, list[int]]) -> list[tuple[int, ...]]:
    signed = {m: [calls[i][3] for i in listed] for m, listed in by_member.items()}
    longest = max(sorted(signed), key=lambda m: len(signed[m]))
    reference = signed[longest]
    columns: list[list[Any]] = [[] for _ in signed[longest]]
    for member in sorted(signed):
        mine = signed[member]
        fits = [o for o in range(len(reference) - len(mine) + 1) if reference[o : o + len(mine)] == mine]
        if len(fits) == 1:
            for k, entry in enumerate(by_member[member]):
                columns[fits[0] + k].append(entry)
    return [tuple(c) for c in columns if len(c) > 1]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(CALLS)
def test_columns_are_those_of_the_plain_way(calls: list[Call]) -> None:
    key, step, member, signature = np.array(calls, np.int64).reshape(-1, 4).T
    found = shared_columns(key, step=step, member=member, signature=signature)
    entries = [tuple(found.entry[a:b].tolist()) for a, b in zip(found.first[:-1], found.first[1:], strict=True)]
    assert set(zip(found.step.tolist(), entries, strict=True)) == one_by_one(calls)
    assert len(entries) == len(one_by_one(calls))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(-1000, 1000), max_size=9), max_size=12))
def test_medians_of_segments_are_those_of_each(segments: list[list[int]]) -> None:
    first = np.cumsum([0, *map(len, segments)])
    flat = np.array([v for segment in segments for v in segment], float)
    assert medians(flat, first).tolist() == [float(np.median(s)) if s else 0.0 for s in segments]
    assert np.allclose(mad_sigmas(flat, first), [mad_sigma(s) for s in segments])
    late = flat.astype(np.int64) + 1_700_000_000_000_000_001
    expected = [
        sorted(s)[(len(s) - 1) // 2] + (sorted(s)[len(s) // 2] - sorted(s)[(len(s) - 1) // 2]) // 2
        for s in segments
        if s
    ]
    exact = median_times(late, first)[[bool(s) for s in segments]]
    assert (exact - 1_700_000_000_000_000_001).tolist() == expected, "to the nanosecond"
