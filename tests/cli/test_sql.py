"""`stepscope sql`: rows on the terminal, as CSV and JSON; one line and exit code 2 for anything else."""

import csv
import io
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.diagnose.late import late_run

from stepscope.cli.main import main
from stepscope.tables.schema import TABLES

needs_sql = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("duckdb", "pyarrow")),
    reason="needs the extra `sql`",
)
QUERY = "SELECT rank, count(*) AS calls, sum(wait_ns) / 1e6 AS wait_ms FROM collectives GROUP BY rank ORDER BY rank"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("late")
    late_run(path)
    return path


@needs_sql
def test_rows_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", str(folder), QUERY]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "calls", "wait_ms"] and len(lines) == 6
    assert lines[2].split()[:2] == ["0", "6"] and abs(float(lines[2].split()[2]) - 12) < 0.1


@needs_sql
def test_csv_and_json_hold_all_rows(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT * FROM events"
    assert main(["sql", str(folder), "--csv", "-", query]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert rows[0] == [c.name for c in TABLES["events"].columns]
    target = tmp_path / "rows.json"
    assert main(["sql", str(folder), query, "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["schema"] == 1 and len(found["rows"]) == len(rows) - 1 > 100
    assert main(["sql", str(folder), query, "--json", str(target)]) == 2  # exists
    capsys.readouterr()
    assert main(["sql", str(folder), query]) == 0
    assert "the first 100 rows" in capsys.readouterr().out


@needs_sql
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC rank FROM steps", "syntax error"),
        ("SELECT * FROM stepz", "does not exist"),
        ("SELECT * FROM read_text('/etc/hostname')", "disabled"),
        ("COPY steps TO '{tmp}/stolen.csv'", "disabled"),
    ],
)
def test_bad_queries_are_one_line(
    folder: Path, tmp_path: Path, query: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", str(folder), query.format(tmp=tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out and not list(tmp_path.iterdir())
