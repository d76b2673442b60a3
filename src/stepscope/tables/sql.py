"""SQL over the tables of a run, by DuckDB, which reaches nothing but these tables.

No file, no network, no extension, no Python variable: external access is off and the configuration locked before the
query runs. A table is made only where the query names it. A query has memory in proportion to the tables it names.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.document.rows import TABLES
from stepscope.errors import UsageError
from stepscope.memory_limit import limited_memory
from stepscope.records import dataclass
from stepscope.tables import cache as kept

if TYPE_CHECKING:
    from stepscope.tables.catalog import RunTables

_CONFIG = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_QUERY_BYTES = 256_000_000  # besides twice what the tables take
_ROWS_BYTES = 256_000_000  # for rows on their way to an output, which DuckDB does not count
_HELD_BYTES = 192_000_000  # of rows that an output holds at once
_VALUE_BYTES = 64  # of a number in a row, about
_TOO_LARGE = "it takes too much memory; select fewer columns, filter or aggregate"
_USED = "SELECT coalesce(sum(memory_usage_bytes), 0) FROM duckdb_memory()"
_CLOSED = ("SET enable_external_access = false", "SET lock_configuration = true")
_TYPES = {"int64": "BIGINT", "float64": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
# in a path: DuckDB would look for files that fit
_PATTERN = frozenset("*?[\\")
_ROWS_AT_ONCE = 2048  # the chunks in which DuckDB makes them


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
    size_bytes = 0
    for name in named_tables(sql):
        table = tables.table(name).arrow()
        connection.register(name, table)
        size_bytes += table.nbytes
    return _answer(duckdb, connection, sql, size_bytes=size_bytes)


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
        (size_bytes,) = connection.execute(_USED).fetchone()
    except (duckdb.Error, UnicodeError):
        return None
    return _answer(duckdb, connection, sql, size_bytes=int(size_bytes))


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


def _answer(duckdb: Any, connection: Any, sql: str, *, size_bytes: int) -> Answer:
    limit_bytes = _QUERY_BYTES + 2 * size_bytes
    for setting in (f"SET memory_limit = '{(size_bytes + limit_bytes) // 1000}kB'", *_CLOSED):
        connection.execute(setting)
    with _failures(duckdb), limited_memory(limit_bytes + _ROWS_BYTES):
        found = connection.execute(sql)
    if found is None:
        raise UsageError('the query is empty; e.g. "SELECT * FROM steps"')
    columns = tuple(d[0] for d in found.description or ())
    return Answer(columns, _rows(duckdb, connection, limit_bytes + _ROWS_BYTES))


def _rows(duckdb: Any, connection: Any, limit_bytes: int) -> Iterator[tuple[Any, ...]]:
    with _failures(duckdb), limited_memory(limit_bytes):
        while rows := connection.fetchmany(_ROWS_AT_ONCE):
            yield from rows


def held_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows for an output that holds them all; a `UsageError` where they are too large for that."""
    left_bytes = _HELD_BYTES
    for row in rows:
        left_bytes -= sum(_VALUE_BYTES + (len(value) if isinstance(value, str | bytes) else 0) for value in row)
        if left_bytes < 0:
            raise UsageError(f"the answer has over {_HELD_BYTES // 10**6} MB; aggregate, select less, or use --csv")
        yield row


@contextmanager
def _failures(duckdb: Any) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise UsageError(f"the query failed: {_TOO_LARGE}") from error
    # values that Python cannot hold, and modules that are not installed for those that it can
    except (duckdb.Error, ArithmeticError, ImportError, ValueError) as error:
        raise UsageError(_why(error)) from error


def _why(error: Exception) -> str:
    text = re.split(r", due to the following Python exception|Traceback", str(error))[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("Out of Memory"):
        return f"the query failed: {_TOO_LARGE}"
    said = " ".join(line for line in lines[:2] if not line.startswith(("LINE ", "^"))).rstrip(":")
    return f"the query failed: {said}; `stepscope sql --tables` lists the tables and their columns"
