"""Rows of a rank are found by the names of a kind, each of which is asked about once."""

from pathlib import Path

import numpy as np
from tests.run.traces import event, rank_of

from stepscope.trace.classify import EventKind


def test_rows_are_found_by_kind_and_name(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::mm", 0, 5),
        event("user_annotation", "aten::mm", 10, 5),
        event("cpu_op", "aten::add", 20, 5),
        event("cpu_op", "aten::mm", 30, 5),
    ]
    rank = rank_of(tmp_path, events)
    asked: list[str] = []

    def matches(name: str) -> bool:
        asked.append(name)
        return name == "aten::mm"

    assert rank.rows_named(matches, EventKind.HOST_OP).tolist() == [0, 3]
    assert sorted(asked) == ["aten::add", "aten::mm"]
    assert rank.rows_named(matches, EventKind.HOST_OP, EventKind.ANNOTATION).tolist() == [0, 1, 3]
    assert rank.rows_named(matches, EventKind.RUNTIME).tolist() == []
    assert rank.names(EventKind.ANNOTATION) == ["aten::mm"]


def test_rows_have_the_number_that_a_rule_gives_to_their_name(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, [event("cpu_op", name, i, 1) for i, name in enumerate(["a", "b", "c", "b"])])
    rows, code = rank.coded_rows(lambda name: {"b": 7, "c": 9}.get(name, 0), EventKind.HOST_OP)
    assert rows.tolist() == [1, 2, 3] and code.tolist() == [7, 9, 7]
    assert code.dtype == np.uint8
