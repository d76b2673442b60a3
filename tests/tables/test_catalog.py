"""Tables say what the analyses say, as NumPy, Arrow, CSV, Parquet and SQL, whatever the names in the traces."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.diagnose.late import late_run

from stepscope.analyze.account import account_of
from stepscope.errors import UsageError
from stepscope.run.load import Run
from stepscope.tables.catalog import RunTables
from stepscope.tables.schema import TABLES
from stepscope.tables.table import answer_csv, table_csv

pa = pytest.importorskip("pyarrow", reason="needs the extra `sql`")
duckdb = pytest.importorskip("duckdb", reason="needs the extra `sql`")

from stepscope.tables.sql import run_query  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
FORMULAS = ("=1+1", "+cmd", "-2", "@SUM(A1)", "\tx", "\rx")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return late_run(tmp_path_factory.mktemp("late"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    r = RankTrace(0)
    r.step(0, 0, 1000)
    for i, name in enumerate(FORMULAS):
        r.kernel(name, at=10 + 10 * i, start=200 + 50 * i, end=240 + 50 * i)
    r.ran('"; DROP TABLE events; --', 100, 110)
    return built_run(tmp_path_factory.mktemp("hostile"), [r])


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_the_columns_and_types_of_the_schema(run: Run, name: str) -> None:
    table = RunTables(run).table(name)
    arrow = table.arrow()
    types = {
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.dictionary(pa.int32(), pa.string()),
    }
    assert arrow.column_names == [c.name for c in TABLES[name].columns]
    assert arrow.schema.types == [types[c.dtype] for c in TABLES[name].columns]
    assert arrow.num_rows == len(table)
    for column in TABLES[name].columns:
        assert len(table[column.name]) == len(table)
        assert column.null or arrow[column.name].null_count == 0


@pytest.mark.slow
def test_tables_agree_with_the_account(run: Run) -> None:
    account = account_of(run)
    budget = RunTables(run).table("budget")
    assert budget["time_ns"].sum() == sum(int(v.budget.part_ns.sum()) for v in account.ranks if v.budget)
    assert RunTables(run).table("ranks")["wait_ns"].tolist() == [v.wait.wait_ns for v in account.ranks if v.wait]
    late = RunTables(run).table("stragglers")
    assert late["rank"].tolist() == [1] and late["cause"].tolist() == [account.stragglers[0].cause]
    assert RunTables(run).table("findings")["id"][0] == "straggler"


def test_collectives_have_wait_transfer_and_who_came_last(run: Run) -> None:
    table = RunTables(run).table("collectives")
    assert len(table) == 24 and set(table["last_rank"].tolist()) == {1}
    assert np.ma.getmaskarray(table["wait_ns"]).sum() == 0
    assert (table["wait_ns"] + table["transfer_ns"] == table["dur_ns"]).all()
    others = table["wait_ns"][table["rank"] != 1]
    assert np.allclose(others, 2_000_000, atol=3000)
    assert sorted(np.unique(table["match"], return_counts=True)[1].tolist()) == [4] * 6


def test_events_are_those_of_the_traces_on_one_clock(run: Run) -> None:
    table = RunTables(run).table("events")
    assert len(table) == sum(rank.trace.num_events for rank in run.ranks)
    steps = table["name"] == "ProfilerStep#2"
    starts = table["start_ns"][steps]
    assert steps.sum() == 4 and np.ptp(starts) < 2_000  # their own clocks are up to 411 us apart


def test_unknown_values_are_masked_not_zero(hostile: Run) -> None:
    table = RunTables(hostile).table("events")
    assert np.ma.is_masked(table["correlation"]) and RunTables(hostile).table("ranks")["host"].tolist() == [None]


def test_unknown_table_and_column_are_named(run: Run) -> None:
    with pytest.raises(UsageError, match=r"no table 'nothing'; use one of events, device_work"):
        RunTables(run).table("nothing")
    with pytest.raises(UsageError, match="steps has no column"):
        RunTables(run).table("steps")["nothing"]


def test_csv_cells_never_begin_a_formula(hostile: Run) -> None:
    rows = list(
        csv.reader(io.StringIO(b"".join(table_csv(RunTables(hostile).table("device_work"))).decode(), newline=""))
    )
    assert [row[3] for row in rows[1:]] == ["'" + name for name in FORMULAS]
    answer = run_query(RunTables(hostile), 'select name as "=n", -1 as minus from device_work order by start_ns')
    rows = list(csv.reader(io.StringIO(answer_csv(answer.columns, answer.rows), newline="")))
    assert rows[0] == ["'=n", "minus"] and [row[0] for row in rows[1:]] == ["'" + name for name in FORMULAS]
    assert {row[1] for row in rows[1:]} == {"-1"}  # a number stays one


def test_sql_finds_what_numpy_finds(run: Run) -> None:
    answer = run_query(RunTables(run), "SELECT rank, sum(dur_ns) FROM device_work GROUP BY rank ORDER BY rank")
    work = RunTables(run).table("device_work")
    assert list(answer.rows) == [(r, int(work["dur_ns"][work["rank"] == r].sum())) for r in range(4)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM glob('/*')",
        "COPY steps TO '{file}2'",
        "ATTACH '{file}3'",
        "EXPORT DATABASE '{file}4'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM tables",  # a variable of the calling code
    ],
)
def test_sql_reaches_nothing_but_the_tables(run: Run, query: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    tables = RunTables(run)
    with pytest.raises(UsageError, match="the query failed"):
        list(run_query(tables, query.format(file=secret)).rows)
    assert list(tmp_path.iterdir()) == [secret]


@pytest.mark.parametrize("query", ["SELEC", "SELECT nothing FROM steps", "SELECT * FROM nothing", "", "SELECT '"])
def test_bad_sql_is_one_line(run: Run, query: str) -> None:
    with pytest.raises(UsageError) as raised:
        list(run_query(RunTables(run), query).rows)
    assert "\n" not in str(raised.value)


def test_the_docs_page_is_what_the_schema_says() -> None:
    assert subprocess.run([sys.executable, ROOT / "tools" / "write_tables.py", "--check"]).returncode == 0
