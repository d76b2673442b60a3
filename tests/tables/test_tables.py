"""Tables say what the analyses say in every form; a second query reads what was kept, unless it changed."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.diagnose.late import late_run

from stepscope.analyze.account import account_of
from stepscope.cache_files import content_key
from stepscope.cli import sql as command
from stepscope.cli.main import main
from stepscope.contract.run_folder import CACHE_FOLDER
from stepscope.document.rows import TABLES
from stepscope.errors import UsageError
from stepscope.run.load import Run
from stepscope.tables.catalog import RunTables
from stepscope.tables.sql import run_query
from stepscope.tables.table import answer_csv, table_csv

pa = pytest.importorskip("pyarrow", reason="needs the extra `sql`")
duckdb = pytest.importorskip("duckdb", reason="needs the extra `sql`")

ROOT = Path(__file__).parent.parent.parent
FORMULAS = ("=1+1", "+cmd", "-2", "@SUM(A1)", "\tx", "\rx", "\uff1d1", " =1", "\ufeff=1", "\x00=1")


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


def test_csv_cells_never_begin_a_formula(hostile: Run) -> None:
    rows = list(
        csv.reader(io.StringIO(b"".join(table_csv(RunTables(hostile).table("device_work"))).decode(), newline=""))
    )
    assert [row[3] for row in rows[1:]] == ["'" + name for name in FORMULAS]
    answer = run_query(RunTables(hostile), 'select name as "=n", -1 as minus from device_work order by start_ns')
    rows = list(csv.reader(io.StringIO(b"".join(answer_csv(answer.columns, answer.rows)).decode(), newline="")))
    assert rows[0] == ["'=n", "minus"] and [row[0] for row in rows[1:]] == ["'" + name for name in FORMULAS]
    assert {row[1] for row in rows[1:]} == {"-1"}  # a number stays one


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM '{file}'", "SELECT * FROM read_csv('{file}')", "SELECT * FROM read_text('{file}')",
        "SELECT * FROM glob('/*')", "COPY steps TO '{file}2'", "ATTACH '{file}3'", "EXPORT DATABASE '{file}4'",
        "SET enable_external_access = true", "SET lock_configuration = false", "INSTALL httpfs", "LOAD httpfs",
        "SELECT * FROM tables",
    ],
)  # fmt: skip
def test_sql_reaches_nothing_but_the_tables(run: Run, query: str, tmp_path: Path) -> None:
    (secret := tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    tables = RunTables(run)
    with pytest.raises(UsageError, match="the query failed"):
        list(run_query(tables, query.format(file=secret)).rows)
    assert list(tmp_path.iterdir()) == [secret]


def test_the_docs_page_is_what_the_schema_says() -> None:
    assert subprocess.run([sys.executable, ROOT / "tools" / "write_tables.py", "--check"]).returncode == 0


QUERY = "SELECT * FROM steps"
Ask = Callable[..., tuple[str, bool]]


@pytest.fixture
def ask(large_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that gives what `stepscope sql` prints, and whether it had to read the run."""
    read: list[object] = []
    run_from = command.run_from  # type: ignore[attr-defined]

    def counted(args: object) -> Run:
        read.append(args)
        return run_from(args)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "run_from", counted)

    def query(sql: str = QUERY, *options: str, of: Path = large_folder, code: int = 0) -> tuple[str, bool]:
        read.clear()
        assert main(["sql", str(of), sql, *options]) == code
        out, err = capsys.readouterr()
        return out + err, bool(read)

    return query


def table_file(folder: Path, name: str = "steps") -> Path:
    (path,) = (folder / CACHE_FOLDER).glob(f"*.tables.{name}.parquet")
    return path


@pytest.mark.parametrize("name", ["steps", "findings"])
def test_second_query_gives_the_same_rows_and_types(ask: Ask, name: str) -> None:
    for sql in (f"SELECT * FROM {name}", f"DESCRIBE {name}"):
        first, _ = ask(sql, "--json", "-", "--no-cache")
        ask(sql, "--json", "-")
        assert ask(sql, "--json", "-") == (first, False)


def _touch(folder: Path) -> None:
    trace = min(folder.glob("*.json*"))
    trace.write_bytes(trace.read_bytes())


def _no_file(folder: Path) -> None:
    table_file(folder).unlink()


def _damaged(folder: Path) -> None:
    path = table_file(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _planted(folder: Path) -> None:
    path, status = table_file(folder), table_file(folder).stat()
    duckdb.sql(f"COPY (SELECT 666 AS rank FROM '{path}') TO '{path}.new' (FORMAT parquet)")
    Path(f"{path}.new").replace(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [_touch, _no_file, _damaged, _planted])
def test_what_changed_is_read_again(large_folder: Path, ask: Ask, change: Callable[[Path], None]) -> None:
    first, _ = ask()
    assert not ask()[1]
    change(large_folder)
    assert ask() == (first, True)
    assert ask() == (first, False)


@pytest.mark.parametrize(
    "content",
    [
        "SELECT 666 AS rank",  # other columns
        "SELECT rank, step, start_ns, dur_ns, period_ns, 'yes' AS complete FROM '{path}'",  # another type
        None,  # no Parquet
    ],
)
def test_a_file_under_the_right_key_is_still_looked_at(large_folder: Path, ask: Ask, content: str | None) -> None:
    first, _ = ask()
    path = table_file(large_folder)
    if content is None:
        path.write_bytes(b"PAR1" + bytes(2000) + b"PAR1")
    else:
        duckdb.sql(f"COPY ({content.format(path=path)}) TO '{path}.new' (FORMAT parquet)")
        Path(f"{path}.new").replace(path)
    (listed,) = (large_folder / CACHE_FOLDER).glob("*.tables")
    said = json.loads(listed.read_text())
    said["tables"]["steps"] = content_key(path)
    listed.write_text(json.dumps(said))
    assert ask() == (first, True)


def test_what_could_not_be_read_is_said_again(large_folder: Path, ask: Ask) -> None:
    (large_folder / "rank9.json").write_text("no trace")
    first, _ = ask(code=3)
    assert "skipped " in first
    assert ask(code=3) == (first, False)


def test_a_folder_whose_name_is_a_pattern_is_read_each_time(large_folder: Path, ask: Ask, tmp_path: Path) -> None:
    odd = tmp_path / "run[1]*"
    shutil.copytree(large_folder, odd)
    assert ask(of=odd)[1] and ask(of=odd)[1]
