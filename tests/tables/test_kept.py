"""A second query of an unchanged run reads the tables that were kept; whatever changed or was planted is made anew."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.diagnose.late import late_run

from stepscope.cli import sql as command
from stepscope.cli.main import main
from stepscope.contract.run_folder import CACHE_FOLDER
from stepscope.document import cache as kept
from stepscope.run.load import Run
from stepscope.tables.schema import TABLES
from stepscope.trace.cache_place import content_key

pytest.importorskip("pyarrow", reason="needs the extra `sql`")
duckdb = pytest.importorskip("duckdb", reason="needs the extra `sql`")

QUERY = "SELECT * FROM steps"
Ask = Callable[..., tuple[str, bool]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a run that counts as large."""
    place = tmp_path / "run"
    place.mkdir()
    late_run(place)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kept, "MIN_RAW_BYTES", 1)
        yield place


@pytest.fixture
def ask(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that gives what `stepscope sql` prints, and whether it had to read the run."""
    read: list[object] = []
    run_from = command.run_from  # type: ignore[attr-defined]

    def counted(args: object) -> Run:
        read.append(args)
        return run_from(args)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "run_from", counted)

    def query(sql: str = QUERY, *options: str, of: Path = folder, code: int = 0) -> tuple[str, bool]:
        read.clear()
        assert main(["sql", str(of), sql, *options]) == code
        out, err = capsys.readouterr()
        return out + err, bool(read)

    return query


def table_file(folder: Path, name: str = "steps") -> Path:
    (path,) = (folder / CACHE_FOLDER).glob(f"*.tables.{name}.parquet")
    return path


@pytest.mark.parametrize("name", TABLES)
def test_second_query_gives_the_same_rows_and_types(ask: Ask, name: str) -> None:
    for sql in (f"SELECT * FROM {name}", f"DESCRIBE {name}"):
        first, _ = ask(sql, "--json", "-", "--no-cache")
        ask(sql, "--json", "-")
        assert ask(sql, "--json", "-") == (first, False)


def test_a_query_of_kept_tables_imports_nothing_heavy(folder: Path, ask: Ask) -> None:
    ask()
    code = (
        "import sys; from stepscope.document import cache; cache.MIN_RAW_BYTES = 1;"
        "from stepscope.cli.main import main;"
        f"assert main(['sql', {str(folder)!r}, {QUERY!r}]) == 0;"
        "print({'numpy', 'pyarrow', 'pandas', 'wasmtime', 'stepscope.run.load'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


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
def test_what_changed_is_read_again(folder: Path, ask: Ask, change: Callable[[Path], None]) -> None:
    first, _ = ask()
    assert not ask()[1]
    change(folder)
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
def test_a_file_under_the_right_key_is_still_looked_at(folder: Path, ask: Ask, content: str | None) -> None:
    first, _ = ask()
    path = table_file(folder)
    if content is None:
        path.write_bytes(b"PAR1" + bytes(2000) + b"PAR1")
    else:
        duckdb.sql(f"COPY ({content.format(path=path)}) TO '{path}.new' (FORMAT parquet)")
        Path(f"{path}.new").replace(path)
    (listed,) = (folder / CACHE_FOLDER).glob("*.tables")
    said = json.loads(listed.read_text())
    said["tables"]["steps"] = content_key(path)
    listed.write_text(json.dumps(said))
    assert ask() == (first, True)


@pytest.mark.parametrize("rows", [100_000, 20_000_000])
def test_more_rows_than_the_bytes_can_hold_are_not_loaded(folder: Path, ask: Ask, rows: int) -> None:
    first, _ = ask()
    path = table_file(folder)
    columns = ", ".join(f"first({column.name}) AS {column.name}" for column in TABLES["steps"].columns)
    duckdb.sql(
        f"COPY (SELECT s.* FROM (SELECT {columns} FROM '{path}') s, range({rows})) TO '{path}.new' (FORMAT parquet)"
    )
    Path(f"{path}.new").replace(path)
    assert rows > 8 * path.stat().st_size
    (listed,) = (folder / CACHE_FOLDER).glob("*.tables")
    said = json.loads(listed.read_text())
    said["tables"]["steps"] = content_key(path)
    listed.write_text(json.dumps(said))
    assert ask() == (first, True)


def test_what_could_not_be_read_is_said_again(folder: Path, ask: Ask) -> None:
    (folder / "rank9.json").write_text("no trace")
    first, _ = ask(code=3)
    assert "rank lost" in first
    assert ask(code=3) == (first, False)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM read_parquet('{path}') -- steps", "disabled"),
        ("COPY steps TO '{path}'", "disabled"),
        ("INSERT INTO steps SELECT * FROM steps", "is not an"),
        ("SET enable_external_access = true -- steps", "Cannot"),
    ],
)
def test_a_query_reaches_neither_the_file_nor_changes_the_table(folder: Path, ask: Ask, sql: str, said: str) -> None:
    first, _ = ask()
    refused = ask(sql.format(path=table_file(folder)), code=2)
    assert said.lower() in refused[0].lower() and not refused[1]
    assert ask() == (first, False)


def test_a_folder_whose_name_is_a_pattern_is_read_each_time(folder: Path, ask: Ask, tmp_path: Path) -> None:
    odd = tmp_path / "run[1]*"
    shutil.copytree(folder, odd)
    assert ask(of=odd)[1] and ask(of=odd)[1]
