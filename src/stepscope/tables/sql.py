"""SQL over the tables of a run, by DuckDB, which reaches nothing but these tables.

No file, no network, no extension, no Python variable: external access is off and the configuration locked before the
query runs. A table is made only where the query names it.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError
from stepscope.records import dataclass
from stepscope.tables import cache as kept
from stepscope.tables.schema import TABLES

if TYPE_CHECKING:
    from stepscope.tables.catalog import RunTables

_CONFIG = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_CLOSED = ("SET enable_external_access = false", "SET lock_configuration = true")
_TYPES = {"int64": "BIGINT", "float64": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
# in a path: DuckDB would look for files that fit
_PATTERN = frozenset("*?[\\")
_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Answer:
    """What a query found. The rows can be walked through once."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def require_duckdb() -> Any:
    """Return the module; a `UsageError` where it, or what it reads our tables through, is not installed."""
    try:
        import duckdb
        import pyarrow  # noqa: F401 - duckdb reads our tables through it
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'stepscope[sql]'") from error
    return duckdb


def run_query(tables: "RunTables", sql: str) -> Answer:
    """Return the answer to one query; a `UsageError` for invalid SQL or unknown tables and columns."""
    duckdb = require_duckdb()
    connection = duckdb.connect(":memory:", config=_CONFIG)
    for name in named_tables(sql):
        connection.register(name, tables.table(name).arrow())
    return _answer(duckdb, connection, sql)


def run_query_of_files(files: Mapping[str, Path], sql: str) -> Answer | None:
    """Return the answer to one query over tables in Parquet files, None where a file does not match its name."""
    try:
        import duckdb
    except ImportError:
        return None
    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        connection.execute("CREATE SCHEMA kept")
        if not all(_is_read(connection, name, path) for name, path in files.items()):
            return None
    except (duckdb.Error, UnicodeError):
        return None
    return _answer(duckdb, connection, sql)


def named_tables(sql: str) -> list[str]:
    """Return the tables that the query may mean: those it names, all where it names none (SHOW TABLES)."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    return [name for name in TABLES if name in words] or list(TABLES)


def _is_read(connection: Any, name: str, path: Path) -> bool:
    if _PATTERN & set(str(path)):
        return False
    query = "SELECT sum(row_group_num_rows) FROM parquet_metadata($1) WHERE column_id = 0"
    num_rows = connection.execute(query, [str(path)]).fetchone()[0] or 0
    # of a Parquet file; rows of a run differ at least in their times
    if num_rows > min(kept.MAX_ROWS, 8 * path.stat().st_size):
        return False
    connection.execute(f"CREATE TABLE kept.{name} AS SELECT * FROM read_parquet($1)", [str(path)])
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM kept.{name}")
    columns = [(row[0], row[1]) for row in connection.execute(f"DESCRIBE {name}").fetchall()]
    return columns == [(column.name, _TYPES[column.dtype]) for column in TABLES[name].columns]


def _answer(duckdb: Any, connection: Any, sql: str) -> Answer:
    for setting in _CLOSED:
        connection.execute(setting)
    try:
        found = connection.execute(sql)
    except duckdb.Error as error:
        raise UsageError(_why(error)) from error
    if found is None:
        raise UsageError('the query is empty; e.g. "SELECT * FROM steps"')
    return Answer(tuple(d[0] for d in found.description or ()), _rows(duckdb, connection))


def _rows(duckdb: Any, connection: Any) -> Iterator[tuple[Any, ...]]:
    try:
        while rows := connection.fetchmany(_ROWS_AT_ONCE):
            yield from rows
    except duckdb.Error as error:
        raise UsageError(_why(error)) from error


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(line for line in lines[:2] if not line.startswith(("LINE ", "^")))
    return f"the query failed: {said}; `stepscope sql --tables` lists the tables and their columns"
