"""Call-stack parents: the innermost enclosing event of the same thread, also where events cross."""

import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.trace.scanner import call_stack
from stepscope.trace.scanner.call_stack import call_stack_parents, stacked
from stepscope.trace.scanner.wasm import Instance

Rows = list[tuple[int, int, int]]


@pytest.fixture(params=["stack", "few"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the scanner's stack, or the way of few events, which is taken as long as there is no instance."""
    monkeypatch.setattr(call_stack, "_IDLE", deque([Instance()] if request.param == "stack" else [], maxlen=4))


def parents(rows: Rows) -> list[int]:
    thread, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return call_stack_parents(thread, start, end).tolist()


def enclosing(rows: Rows, i: int) -> int:
    """Return the parent by the definition: the last row before that encloses this one."""
    thread, start, end = rows[i]
    for j in range(i - 1, -1, -1):
        other_thread, other_start, other_end = rows[j]
        encloses = other_start <= start and end <= other_end and (start < other_end or start == other_start)
        if thread == other_thread and encloses:
            return j
    return -1


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=25))
def test_parent_is_the_innermost_enclosing_event(some: Rows) -> None:
    rows = sorted(((t, s, s + d) for t, s, d in some), key=lambda r: (r[0], r[1], -r[2]))
    assert parents(rows) == [enclosing(rows, i) for i in range(len(rows))]


def test_long_input_is_followed_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3 * call_stack.CHUNK_ROWS // 2
    start = np.arange(count, dtype=np.int64)
    end = 10 * count - start
    found = call_stack_parents(np.zeros(count, np.int64), start, end)
    assert found.tolist() == list(range(-1, count - 1))


@pytest.mark.parametrize("scale", [1, 1 << 59])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 4), st.booleans()), max_size=30))
def test_order_of_a_stack_is_by_thread_start_longest_first_and_stable(
    scale: int, some: list[tuple[int, int, int, bool]]
) -> None:
    thread, start, length, then = (np.array([row[i] for row in some], np.int64) for i in range(4))
    start, end = scale * start, scale * (start + length)
    assert stacked(thread, start, end).order.tolist() == np.lexsort((-end, start, thread)).tolist()
    both = stacked(thread, start, end, then.astype(bool))
    assert both.order.tolist() == np.lexsort((then, -end, start, thread)).tolist()
    for column, of_stack in zip((thread, start, end), both[1:], strict=True):
        assert of_stack.tolist() == column[both.order].tolist()


def test_instance_at_hand_does_not_disturb_the_end_of_the_process() -> None:
    code = (
        "import numpy as np; from stepscope.trace.scanner import call_stack; ask = call_stack.call_stack_parents; "
        "rows = np.arange(call_stack.CHUNK_ROWS + 1); ask(rows * 0, rows, rows + 1); assert call_stack._IDLE"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
