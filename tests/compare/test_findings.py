"""Lines and findings of two sides, matched by cause, line and ranks, and predictions held against what was measured."""

from typing import Any

import pytest

from stepscope.compare.document import line_changes
from stepscope.compare.findings import (
    CAME_TRUE,
    LESS,
    MORE,
    Cause,
    OwnedLine,
    Side,
    finding_changes,
    lines_by_key,
    prediction,
)
from stepscope.stats.robust import Difference

MS = 1e6


def line(number: int, text: str, ms: float, **more: Any) -> OwnedLine:
    return OwnedLine("train.py", number, "main", None, text, ms * MS, **more)


def cause(
    text: str | None, ms: float, *, kind: str = "Work", id_: str = "host-stall", pct: float = 10.0, rank: int = 0
) -> Cause:
    at = None if text is None else ("train.py", "main", text)
    return Cause(id_, kind, f"{kind} {ms}", (rank,), at, ms, 0.8 * ms, 1.2 * ms, pct, ms)


def side(causes: list[Cause], *lines: OwnedLine) -> Side:
    return Side(lines_by_key(lines), tuple(causes))


def statuses(a: Side, b: Side) -> dict[str, str]:
    return {c["line"]["text"] if c["line"] else c["title"].split()[0]: c["what"] for c in finding_changes([a], [b])}


def test_a_fixed_line_is_resolved_while_the_machine_stays_busy() -> None:
    before = side([cause(None, 411, kind="Waits"), cause("sleep()", 54)], line(7, "sleep()", 54))
    after = side([cause(None, 322, kind="Waits"), cause("save()", 13)], line(9, "save()", 13))
    assert statuses(before, after) == {"Waits": "same", "sleep()": "resolved", "save()": "new"}


def test_a_line_that_moved_is_the_same_and_a_rank_that_changed_is_not() -> None:
    before, after = side([cause("f()", 20)], line(3, "f()", 20)), side([cause("f()", 21)], line(8, "f()", 21))
    assert statuses(before, after) == {"f()": "same"}
    changes = finding_changes([side([cause(None, 20, rank=1)])], [side([cause(None, 20, rank=2)])])
    assert [(c["what"], c["ranks"]) for c in changes] == [("new", (2,)), ("resolved", (1,))]


def test_a_finding_below_the_threshold_of_a_slower_step_is_not_resolved() -> None:
    before, after = side([cause("f()", 20)], line(3, "f()", 20)), side([], line(3, "f()", 19))
    assert statuses(before, after) == {"f()": "same"} == statuses(after, before)


@pytest.mark.parametrize(
    ("ms", "pct", "what"), [(60, 30, "larger"), (60, 11, "same"), (8, 4, "smaller"), (8, 9, "same"), (19, 21, "same")]
)
def test_neither_another_load_nor_another_fix_alone_makes_a_finding_larger(ms: float, pct: float, what: str) -> None:
    before, after = side([cause(None, 20, kind="f")]), side([cause(None, ms, kind="f", pct=pct)])
    assert statuses(before, after) == {"f": what}


def test_slower_and_faster_lines_come_by_size() -> None:
    a = lines_by_key([line(1, "a()", 10), line(2, "b()", 30), line(3, "c()", 5)])
    b = lines_by_key([line(1, "a()", 18), line(2, "b()", 10), line(3, "c()", 5)])
    assert [(c["source"], round(c["change"])) for c in line_changes([a], [b])] == [("b()", -20), ("a()", 8)]


@pytest.mark.parametrize(
    ("saved", "outcome"), [((15, 18), CAME_TRUE), ((10, 15), LESS), ((25, 30), MORE), ((23, 40), CAME_TRUE)]
)
def test_a_prediction_came_true_where_both_intervals_meet(saved: tuple[float, float], outcome: str) -> None:
    before, after = side([cause("f()", 20)], line(3, "f()", 20)), side([])
    low, high = saved
    measured = Difference(100, 100 - (low + high) / 2, -high, -low, 0.001, 1.0)
    found = prediction([before], finding_changes([before], [after]), measured)
    assert found is not None and found["outcome"] == outcome
    assert (found["predicted_ms"], found["low_ms"], found["high_ms"]) == (20, 16, 24)
    assert (found["measured_low_ms"], found["measured_high_ms"]) == saved
