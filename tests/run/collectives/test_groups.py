"""Process groups from headers and records, with long, shortened and hostile rank lists."""

from pathlib import Path
from typing import Any

import pytest
from tests.run.traces import event, trace_of

from stepscope.run.groups import UNKNOWN_GROUP, Group, group_of_record, header_groups


def header(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"distributedInfo": {"pg_config": list(groups)}}


def test_groups_of_the_header() -> None:
    found = header_groups(header({"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]}))
    assert found == {"0": Group("0", "default_pg", (0, 1, 2, 3), 4)}


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"distributedInfo": 7},
        {"distributedInfo": {"pg_config": "x"}},
        {"distributedInfo": {"pg_config": [1, None]}},
    ],
)
def test_header_without_groups_has_none(bad: dict[str, Any]) -> None:
    assert header_groups(bad) == {}


@pytest.mark.parametrize("ranks", ["all", [], ["0"], None, [0.5]])
def test_ranks_that_are_no_list_of_numbers_are_unknown(ranks: Any) -> None:
    assert header_groups(header({"pg_name": "1", "pg_size": "4", "ranks": ranks})) == {"1": Group("1", "", None, None)}


RECORD: dict[str, Any] = {"Process Group Name": "7", "Process Group Description": "mesh_dp", "Group size": 3}


def group(folder: Path, *, known: dict[str, Group] | None = None, **args: Any) -> Group:
    trace = trace_of(folder, [event("cpu_op", "record_param_comms", **args)])
    names = ("group_name", "group_desc", "group_ranks", "group_size", "group_start", "group_stride")
    record = {name: int(values[0]) if len(values := trace.arg(name).values) else -1 for name in names}
    return group_of_record(trace, record, known or {})


def test_group_of_a_record(tmp_path: Path) -> None:
    assert group(tmp_path, **RECORD, **{"Process Group Ranks": "[0, 4, 8]"}) == Group("7", "mesh_dp", (0, 4, 8), 3)  # type: ignore[arg-type]


def test_shortened_rank_list_comes_from_start_and_stride(tmp_path: Path) -> None:
    long: dict[str, Any] = {**RECORD, "Group size": 64, "Process Group Ranks": "[0, 8, 16, ..., 504]"}
    found = group(tmp_path, **long, **{"Global rank start": 0, "Global rank stride": 8})  # type: ignore[arg-type]
    assert found.ranks == tuple(range(0, 512, 8))
    assert found.size == 64


def test_shortened_rank_list_comes_from_the_header(tmp_path: Path) -> None:
    known = {"7": Group("7", "from header", (5, 3, 1), 3)}
    found = group(tmp_path, known=known, **RECORD, **{"Process Group Ranks": "[5, ..., 1]"})
    assert found == Group("7", "mesh_dp", (5, 3, 1), 3)


def test_list_that_disagrees_with_the_size_is_not_believed(tmp_path: Path) -> None:
    assert group(tmp_path, **RECORD, **{"Process Group Ranks": "[0, 1]"}).ranks is None  # type: ignore[arg-type]


def test_record_that_says_nothing_is_of_the_unknown_group(tmp_path: Path) -> None:
    assert group(tmp_path) is UNKNOWN_GROUP


def test_size_follows_from_the_list(tmp_path: Path) -> None:
    found = group(tmp_path, **{"Process Group Name": "2", "Process Group Ranks": "[1, 2]"})  # type: ignore[arg-type]
    assert (found.ranks, found.size) == ((1, 2), 2)


@pytest.mark.parametrize("text", ["[" * 50_000, "[1e999]", "{}", "not json", "[" + "9" * 5000 + "]"])
def test_hostile_rank_lists_are_unknown(tmp_path: Path, text: str) -> None:
    assert group(tmp_path, **RECORD, **{"Process Group Ranks": text}).ranks is None  # type: ignore[arg-type]


def test_absurd_group_is_not_written_out(tmp_path: Path) -> None:
    absurd: dict[str, Any] = {**RECORD, "Group size": 10**15, "Global rank start": 0, "Global rank stride": 1}
    assert group(tmp_path, **absurd).ranks is None
