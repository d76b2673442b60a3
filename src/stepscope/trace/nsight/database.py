"""An sqlite file of somebody else, opened so that nothing in it can run and nothing around it is touched.

Read-only and immutable: no journal is replayed, no lock taken, no file written. Only plain tables are read, never views
or virtual tables, and of them only columns that are stored, never computed ones. An authorizer refuses everything but
reading. One value may take MAX_VALUE_BYTES; rows come in chunks. A table is read without its indices, once it is known
to claim no more than the file can hold.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.errors import TraceError
from stepscope.trace.nsight.btree_size import TablePages
from stepscope.trace.table import Int64s
from stepscope.units import printable

CHUNK_ROWS = 20_000
MAX_VALUE_BYTES = 16 << 20
MAX_TEXT = 65_536
"""characters; longer texts are shortened, as in JSON traces"""
MAX_TABLES = 10_000
_SCHEMA_ROOT = 1
_IDS_AT_ONCE = 500
_MAX_SAID = 200
_MAX_DEFAULT = 64
"""characters of a column's default value, which rows repeat without having it"""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}
_ALLOWED_FUNCTIONS = {"max", "min", "substr"}

_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""sqlite names what is damaged in its message, and Python may fail to read that"""

Bools = npt.NDArray[np.bool_]


class Database:
    """An open file: which tables it has, and their rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shortened: set[int] = set()
        """ids of texts that were too long"""
        self.replaced: set[int] = set()
        """ids of texts that were no UTF-8"""
        self._columns: dict[str, frozenset[str]] = {}
        self._texts: dict[int, str | None] = {}
        self._roots: dict[str, int] = {}
        self._pages = TablePages(path)
        try:
            self._pages.claim(_SCHEMA_ROOT)
            self._db = _opened(path)
            self._tables = self._plain_tables()
        except _DAMAGE as error:
            raise self._damaged(error) from error

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._db.close()
        if isinstance(error, _DAMAGE):
            raise self._damaged(error) from error

    def has(self, table: str) -> bool:
        """Return whether there is such a table; raises where a view stands in its place."""
        kind = self._tables.get(table)
        if kind is not None and kind != "table":
            raise TraceError(f"{self.path}: {table} is {kind} where an export has a table; export it again")
        return kind is not None

    def columns(self, table: str) -> frozenset[str]:
        """Return the stored columns of a table that the file can hold, none where there is no such table."""
        if not self.has(table):
            return frozenset()
        if table not in self._columns:
            listed = self._db.execute(f'PRAGMA table_xinfo("{table}")').fetchall()
            stored = [row for row in listed if row[6] == 0 and len(row[4] or b"") <= _MAX_DEFAULT]
            self._pages.claim(self._roots[table])
            self._columns[table] = frozenset(self.text(row[1]) or "" for row in stored)
        return self._columns[table]

    def num_rows(self, table: str) -> int:
        """Return about how many rows a table has, without reading them."""
        if not self.has(table):
            return 0
        try:
            found = self._db.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0]
        except sqlite3.OperationalError:  # a table without row numbers
            return 0
        return found if isinstance(found, int) and 0 < found < 1 << 40 else 0

    def chunks(
        self, table: str, columns: Sequence[str], *, where: str = "", values: Sequence[Any] = ()
    ) -> Iterator[dict[str, Sequence[Any]]]:
        """Yield the values of some columns, chunk by chunk; a column that the table lacks is all None.

        `where` is SQL of ours, with a `?` for each of `values`.
        """
        there = [name for name in columns if name in self.columns(table)]
        if not there:
            return
        listed = ", ".join(f'"{name}"' for name in there)
        condition = f" WHERE {where}" if where else ""
        cursor = self._db.execute(f'SELECT {listed} FROM "{table}" NOT INDEXED{condition}', values)
        while rows := cursor.fetchmany(CHUNK_ROWS):
            chunk: dict[str, Sequence[Any]] = dict.fromkeys(columns, (None,) * len(rows))
            chunk.update(zip(there, zip(*rows, strict=True), strict=True))
            yield chunk

    def texts(self, ids: Sequence[Any], *, keep: bool = True) -> dict[int, str]:
        """Return the texts of ids in `StringIds`; an id that has none is left out. `keep` remembers them."""
        wanted = {i for i in ids if type(i) is int}
        known = {i: self._texts[i] for i in wanted if i in self._texts}
        missing = sorted(wanted - known.keys())
        for at in range(0, len(missing), _IDS_AT_ONCE):
            part = missing[at : at + _IDS_AT_ONCE]
            found = self._strings(part)
            known |= {i: found.get(i) for i in part}
        if keep:
            self._texts |= known
        return {i: text for i, text in known.items() if text is not None}

    def ids_between(self, low: str, high: str, most: int) -> list[int]:
        """Return the ids of at most so many texts from `low` on and before `high`."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return []
        query = "SELECT id FROM StringIds NOT INDEXED WHERE value >= ? AND value < ?"
        return [i for (i,) in self._db.execute(query, (low, high)).fetchmany(most)]

    def text(self, value: Any, mark: int = 0) -> str | None:
        """Return a text as this table keeps it, None for anything else; `mark` counts it where it had to change."""
        if not isinstance(value, bytes):
            return None
        try:
            plain = value.decode()
        except UnicodeDecodeError:
            plain = value.decode(errors="replace")
            self.replaced.add(mark)
        if len(plain) > MAX_TEXT:
            self.shortened.add(mark)
            return plain[:MAX_TEXT] + "…"
        return plain

    def _strings(self, ids: list[int]) -> dict[int, str | None]:
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        marks = ", ".join("?" * len(ids))
        query = f"SELECT id, substr(value, 1, {MAX_TEXT + 1}) FROM StringIds NOT INDEXED WHERE id IN ({marks})"
        return {i: self.text(value, i) for i, value in self._db.execute(query, ids)}

    def _plain_tables(self) -> dict[str, str]:
        """Return what each name stands for: `table`, or in words something that is not read."""
        listed = self._db.execute("SELECT name, type, sql, rootpage FROM sqlite_master").fetchmany(MAX_TABLES)
        found = {}
        for raw_name, raw_kind, raw_sql, root in listed:
            name, kind, sql = (self.text(value) or "" for value in (raw_name, raw_kind, raw_sql))
            is_plain = kind == "table" and sql.lstrip().upper().startswith("CREATE TABLE")
            if kind in ("table", "view"):
                self._roots[name] = root if isinstance(root, int) else 0
                found[name] = "table" if is_plain else f"a {'virtual table' if kind == 'table' else kind}"
        if found.get("StringIds") == "table" and not self._has_key():
            raise TraceError(f"{self.path}: StringIds has no primary key, which every export has; export it again")
        return found

    def _has_key(self) -> bool:
        """Return whether texts are found by their id without reading all of them."""
        listed = self._db.execute('PRAGMA table_xinfo("StringIds")').fetchall()
        keys = [(self.text(row[1]), (self.text(row[2]) or "").upper()) for row in listed if row[5]]
        return keys == [("id", "INTEGER")]

    def _damaged(self, error: sqlite3.Error | UnicodeDecodeError) -> TraceError:
        said = "too large a value in it" if "too big" in str(error) else printable(str(error), width=_MAX_SAID)
        if isinstance(error, UnicodeDecodeError):
            said = "its tables have names that are no text"
        return TraceError(f"{self.path}: cannot be read as an sqlite file ({said}); export it again with nsys export")


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
    )
    db.text_factory = bytes
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
        db.execute(f"PRAGMA {setting}").fetchall()
    db.set_authorizer(_authorize)
    return db


def _authorize(action: int, what: str | None, which: str | None, _database: str | None, _trigger: str | None) -> int:
    if action in _ALLOWED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and which in _ALLOWED_FUNCTIONS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and what == "table_xinfo":
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def integers(values: Sequence[Any], *, missing: int = 0) -> tuple[Int64s, Bools]:
    """Return values of a column as integers, and which of them are: sqlite keeps anything in any column.

    >>> integers((3, None, "7", 2.5))
    (array([3, 0, 0, 0]), array([ True, False, False, False]))
    """
    if set(map(type, values)) <= {int}:
        return np.array(values, np.int64), np.ones(len(values), bool)
    known = np.fromiter((type(value) is int for value in values), bool, len(values))
    return np.fromiter((v if type(v) is int else missing for v in values), np.int64, len(values)), known
