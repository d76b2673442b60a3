"""Call stacks: no moment of a thread is counted twice, and callers are found."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyze.build import AUTOGRAD, MAIN, RankTrace, built_run, true_ns

from stepscope.analyze.host_calls import HostCalls, host_calls
from stepscope.intervals import union
from stepscope.trace.scanner.call_stack import call_stack_parents

spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), max_size=25)


def table(found: list[tuple[int, int, int]]) -> HostCalls:
    """A table of (thread, start, length)."""
    rows = sorted(found, key=lambda r: (r[0], r[1], -r[2]))
    thread, start, length = (np.array([r[i] for r in rows], np.int64) for i in range(3))
    end = start + length
    at, parent = np.arange(len(rows), dtype=np.int32), call_stack_parents(thread, start, end).astype(np.int32)
    return HostCalls(at, np.zeros(len(rows), np.int32), thread, start, end, parent)


@pytest.mark.slow
@given(spans)
@settings(max_examples=150, deadline=None)
def test_self_times_sum_to_the_busy_time_of_each_thread(found: list[tuple[int, int, int]]) -> None:
    calls = table(found)
    own = calls.self_ns()
    assert (own >= 0).all()
    for thread in np.unique(calls.thread):
        mine = calls.thread == thread
        assert own[mine].sum() == union(calls.start_ns[mine], calls.end_ns[mine]).total_ns


@given(spans, st.integers(0, 2**25 - 1))
@settings(max_examples=100, deadline=None)
def test_nearest_is_the_first_wanted_call_on_the_way_up(found: list[tuple[int, int, int]], chosen: int) -> None:
    calls = table(found)
    wanted = np.array([bool(chosen >> i & 1) for i in range(len(calls))], bool)
    for i, nearest in enumerate(calls.nearest(wanted).tolist()):
        at = i
        while at >= 0 and not wanted[at]:
            at = int(calls.parent[at])
        assert nearest == at
    some = np.append(np.arange(0, len(calls), 2), -1)
    assert calls.nearest_to(some, wanted).tolist() == [*calls.nearest(wanted)[some[:-1]].tolist(), -1]


def nested(tmp_path: Path) -> tuple[HostCalls, dict[str, int]]:
    r = RankTrace()
    r.step(0, 0, 1000)
    r.ran("outer", 0, 100)
    r.ran("inner", 10, 40)
    r.ran("innermost", 20, 30)
    r.ran("second", 50, 90)
    r.ran("elsewhere", 0, 70, thread=AUTOGRAD)
    rank = built_run(tmp_path, [r]).ranks[0]
    calls = host_calls(rank)
    return calls, {rank.trace.strings[name]: i for i, name in enumerate(calls.name)}


def test_self_time_is_what_no_called_operator_covers(tmp_path: Path) -> None:
    calls, at = nested(tmp_path)
    own = calls.self_ns()
    assert {name: int(own[i]) // 1000 for name, i in at.items()} == {
        "outer": 30,
        "inner": 20,
        "innermost": 10,
        "second": 40,
        "elsewhere": 70,
    }


def test_amounts_add_up_along_the_callers(tmp_path: Path) -> None:
    calls, at = nested(tmp_path)
    amounts = np.zeros(len(calls))
    amounts[at["innermost"]], amounts[at["second"]], amounts[at["elsewhere"]] = 1, 10, 100
    total = calls.with_called(amounts)
    assert [total[at[name]] for name in ("innermost", "inner", "second", "outer", "elsewhere")] == [1, 1, 10, 11, 100]


@pytest.mark.parametrize(
    ("moment_us", "thread", "expected"),
    [(25, MAIN, "innermost"), (35, MAIN, "inner"), (45, MAIN, "outer"), (60, AUTOGRAD, "elsewhere")],
)
def test_innermost_open_call_is_found(tmp_path: Path, moment_us: int, thread: int, expected: str) -> None:
    calls, at = nested(tmp_path)
    found = calls.innermost_at(np.array([thread]), np.array([true_ns(moment_us)]))
    assert found.tolist() == [at[expected]]


def test_no_call_is_open_on_an_idle_or_unknown_thread(tmp_path: Path) -> None:
    calls, _ = nested(tmp_path)
    threads, moments = np.array([MAIN, AUTOGRAD, 999]), np.full(3, true_ns(150))
    assert calls.innermost_at(threads, moments).tolist() == [-1, -1, -1]


def test_a_trace_without_operators_has_no_calls(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 1000)
    r.kernel("k", at=5, start=20, end=30)
    calls = host_calls(built_run(tmp_path, [r]).ranks[0])
    assert len(calls) == 0
    assert calls.self_ns().tolist() == []
    assert calls.innermost_at(np.array([MAIN]), np.array([true_ns(5)])).tolist() == [-1]
    assert calls.at_rows(np.array([-1, 0])).tolist() == [-1, -1]
