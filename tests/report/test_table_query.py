"""Rows of a table by a filter's words and a column's order: texts, numbers, and what is unknown."""

import pytest

from stepscope.report.view.site import TableQuery, chosen_rows, first_start_ns, rows_of
from stepscope.tables.schema import Column, TableSchema
from stepscope.tables.table import Table, table_of_rows

COLUMNS = (
    Column("name", "text", "", "", null=True),
    Column("rank", "int64", "", ""),
    Column("wait_ns", "int64", "ns", "", null=True),
    Column("start_ns", "int64", "ns", ""),
)


@pytest.fixture(scope="module")
def table() -> Table:
    rows = [("nccl Sum", 0, 5, 30), ("gemm", 1, None, 20), ("NCCL Max", 1, 3, 10), (None, 2, 9, 40)]
    return table_of_rows(TableSchema("t", "", COLUMNS), rows)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (TableQuery(), [0, 1, 2, 3]),
        (TableQuery("nccl"), [0, 2]),
        (TableQuery("nccl rank=1"), [2]),
        (TableQuery("rank!=1"), [0, 3]),
        (TableQuery("wait_ns>=5"), [0, 3]),
        (TableQuery("name=gemm"), [1]),
        (TableQuery("rank>x"), []),
        (TableQuery("nothing=1"), []),
        (TableQuery(sort="wait_ns"), [2, 0, 3, 1]),
        (TableQuery(sort="wait_ns", down=True), [3, 0, 2, 1]),
        (TableQuery(sort="name"), [1, 2, 0, 3]),
        (TableQuery(sort="none"), [0, 1, 2, 3]),
    ],
)
def test_rows_that_hold_every_word_in_order(table: Table, query: TableQuery, rows: list[int]) -> None:
    assert chosen_rows(table, query).tolist() == rows


def test_chosen_rows_are_a_table_of_their_own(table: Table) -> None:
    some = rows_of(table, chosen_rows(table, TableQuery("nccl")))
    assert some["name"].tolist() == ["nccl Sum", "NCCL Max"] and len(some) == 2
    assert first_start_ns(table) == 10


def test_empty_table_has_no_row() -> None:
    empty = table_of_rows(TableSchema("t", "", COLUMNS), [])
    assert chosen_rows(empty, TableQuery("x", "name")).tolist() == [] and first_start_ns(empty) is None
