"""An untrusted sqlite file, opened so that nothing in it can run and nothing around it is touched.

Read-only and immutable: no journal is replayed, no lock taken, no file written. Only plain tables are read, never views
or virtual tables, and of them only columns that are stored, never computed ones. An authorizer refuses everything but
reading. One value may take MAX_VALUE_BYTES; rows come in chunks. A table is read without its indices, once it is known
to claim no more than the file can hold.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.errors import TraceError
from stepscope.side_file import open_side_file
from stepscope.trace.table import Int64s
from stepscope.units import printable

# Tables that claim more than their file can hold.
#
# sqlite follows the page numbers in a file without counting. Interior pages that all name the same child, and rows that
# share their bytes or their overflow pages, make terabytes from a few kilobytes. In a sound file each page has one
# parent, and all rows together are smaller than the file. Both are checked before a table is read.
#
#     page    kind (1 byte), -, -, number of cells (2), -, -, -, last child (4, interior only), offset of each cell (2)
#     cell    child (4, interior only), bytes of the row (varint, not in interior pages of a table), ...

_TABLE_LEAF, _INDEX_LEAF, _TABLE_INTERIOR, _INDEX_INTERIOR = 13, 10, 5, 2
_MIN_CELL_BYTES = 6  # with its offset; sqlite refuses pages with more cells
_BATCH_PAGES, _CHUNK_ROWS = 256, 20_000
_VARINT_BYTES = 5  # 35 bits; a row of sqlite has at most 32
_MULTIPLIED = "more rows than the file's bytes can hold"

_Int64s = npt.NDArray[np.int64]


class TablePages:
    """The pages and bytes of a file that its tables claimed so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claimed = np.zeros(0, bool)
        self._row_bytes = 0

    def claim(self, root: int) -> None:
        """Claim what a table takes, by its root page; an `sqlite3.DatabaseError` if the file cannot hold that much."""
        with open_side_file(self._path, max_bytes=1 << 42) as f:
            fd, size_bytes = f.fileno(), os.fstat(f.fileno()).st_size
            page_bytes = int.from_bytes(os.pread(fd, 2, 16), "big")
            page_bytes = 1 << 16 if page_bytes == 1 else max(page_bytes, 512)
            self._claimed.resize(size_bytes // page_bytes + 1, refcheck=False)
            level = np.array([root], np.int64)
            while len(level):
                self._claim_pages(level)
                children = []
                for at in range(0, len(level), _BATCH_PAGES):
                    batch = level[at : at + _BATCH_PAGES]
                    read = (os.pread(fd, page_bytes, (page - 1) * page_bytes) for page in batch.tolist())
                    pages = [page.ljust(page_bytes, b"\0") for page in read]  # the file may shrink meanwhile
                    children.append(self._children(_Batch(pages, page_bytes, has_first=1 in batch)))
                    if self._row_bytes > size_bytes:
                        raise sqlite3.DatabaseError(_MULTIPLIED)
                level = np.concatenate(children)

    def _claim_pages(self, pages: _Int64s) -> None:
        if pages.min() < 1 or pages.max() >= len(self._claimed):
            raise sqlite3.DatabaseError("a page outside the file")
        if self._claimed[pages].any() or len(np.unique(pages)) < len(pages):
            raise sqlite3.DatabaseError(_MULTIPLIED)
        self._claimed[pages] = True

    def _children(self, batch: "_Batch") -> _Int64s:
        found = [np.empty(0, np.int64)]
        kind = batch.number(batch.head, 1)
        for one in (_TABLE_LEAF, _INDEX_LEAF, _TABLE_INTERIOR, _INDEX_INTERIOR):
            of = np.flatnonzero(kind == one)
            if not len(of):
                continue
            is_interior = one in (_TABLE_INTERIOR, _INDEX_INTERIOR)
            cells = batch.cells(of, header_bytes=12 if is_interior else 8)
            if is_interior:
                found += [batch.number(cells, 4), batch.number(batch.head[of] + 8, 4)]
            if one != _TABLE_INTERIOR:
                self._row_bytes += int(batch.varint(cells + 4 * is_interior).sum())
        return np.concatenate(found)


class _Batch:
    def __init__(self, pages: list[bytes], page_bytes: int, *, has_first: bool) -> None:
        self._page_bytes = page_bytes
        # Cells may reach beyond the end of their page, one without a byte left of it.
        self._data = np.frombuffer(b"".join([*pages, bytes(2 * page_bytes)]), np.uint8)
        self._start = np.arange(len(pages), dtype=np.int64) * page_bytes
        self.head = self._start + (100 if has_first else 0)  # the first page is a root, so alone

    def cells(self, pages: npt.NDArray[np.intp], *, header_bytes: int) -> _Int64s:
        count = self.number(self.head[pages] + 3, 2)
        if (count > self._page_bytes // _MIN_CELL_BYTES).any():
            raise sqlite3.DatabaseError(_MULTIPLIED)
        before = np.repeat(np.cumsum(count) - count, count)
        offset_at = np.repeat(self.head[pages] + header_bytes, count) + 2 * (np.arange(len(before)) - before)
        offset = self.number(offset_at, 2)
        if (offset >= self._page_bytes).any():
            raise sqlite3.DatabaseError("a row outside its page")
        return np.repeat(self._start[pages], count) + offset

    def number(self, at: _Int64s, num_bytes: int) -> _Int64s:
        found = np.zeros(len(at), np.int64)
        for i in range(num_bytes):
            found = found << 8 | self._data[at + i]
        return found

    def varint(self, at: _Int64s) -> _Int64s:
        found, unfinished = np.zeros(len(at), np.int64), np.arange(len(at))
        for i in range(_VARINT_BYTES):
            byte = self._data[at[unfinished] + i]
            found[unfinished] = found[unfinished] << 7 | byte & 0x7F
            unfinished = unfinished[byte >= 0x80]
        found[unfinished] = 1 << 40
        return found


# characters; longer texts are shortened, as in JSON traces
_MAX_TEXT = 65_536
_IDS_AT_ONCE = 500
# characters of a column's default value, which rows repeat without having it
_MAX_DEFAULT = 64

# sqlite names what is damaged in its message, and Python may fail to read that
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)

Bools = npt.NDArray[np.bool_]


class Database:
    """An open file: which tables it has, and their rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # ids of texts that were too long
        self.shortened: set[int] = set()
        # ids of texts that were no UTF-8
        self.replaced: set[int] = set()
        self._columns: dict[str, frozenset[str]] = {}
        self._texts: dict[int, str | None] = {}
        self._roots: dict[str, int] = {}
        self._pages = TablePages(path)
        try:
            self._pages.claim(1)
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

    def tables(self) -> list[str]:
        """Return the names of tables that can be read."""
        return [name for name, kind in self._tables.items() if kind == "table"]

    def has(self, table: str) -> bool:
        """Return whether there is such a table; raises where there is a view of that name."""
        kind = self._tables.get(table)
        if kind is not None and kind != "table":
            raise TraceError(f"{self.path}: {table} is {kind} where an export has a table; export it again")
        return kind is not None

    def columns(self, table: str) -> frozenset[str]:
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
        while rows := cursor.fetchmany(_CHUNK_ROWS):
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
            known |= dict.fromkeys(part) | self._strings(part)
        if keep:
            self._texts |= known
        return {i: text for i, text in known.items() if text is not None}

    def ids_between(self, low: str, high: str, most: int) -> list[int]:
        """Return the ids of at most `most` texts from `low` on and before `high`."""
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
        if len(plain) > _MAX_TEXT:
            self.shortened.add(mark)
            return plain[:_MAX_TEXT] + "…"
        return plain

    def _strings(self, ids: list[int]) -> dict[int, str | None]:
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        marks = ", ".join("?" * len(ids))
        query = f"SELECT id, substr(value, 1, {_MAX_TEXT + 1}) FROM StringIds NOT INDEXED WHERE id IN ({marks})"
        return {i: self.text(value, i) for i, value in self._db.execute(query, ids)}

    def _plain_tables(self) -> dict[str, str]:
        listed = self._db.execute("SELECT name, type, sql, rootpage FROM sqlite_master").fetchmany(10_000)
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
        listed = self._db.execute('PRAGMA table_xinfo("StringIds")').fetchall()
        keys = [(self.text(row[1]), (self.text(row[2]) or "").upper()) for row in listed if row[5]]
        return keys == [("id", "INTEGER")]

    def _damaged(self, error: sqlite3.Error | UnicodeDecodeError) -> TraceError:
        said = "too large a value in it" if "too big" in str(error) else printable(str(error), width=200)
        if isinstance(error, UnicodeDecodeError):
            said = "its tables have names that are no text"
        return TraceError(f"{self.path}: cannot be read as an sqlite file ({said}); export it again with nsys export")


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
    )
    db.text_factory = bytes
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 16 << 20)
    for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
        db.execute(f"PRAGMA {setting}").fetchall()
    db.set_authorizer(_authorize)
    return db


def _authorize(action: int, what: str | None, which: str | None, _database: str | None, _trigger: str | None) -> int:
    is_function = action == sqlite3.SQLITE_FUNCTION and which in {"max", "min", "substr"}
    is_schema = action == sqlite3.SQLITE_PRAGMA and what == "table_xinfo"
    is_reading = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    return sqlite3.SQLITE_OK if is_reading or is_function or is_schema else sqlite3.SQLITE_DENY


def integers(values: Sequence[Any], *, missing: int = 0) -> tuple[Int64s, Bools]:
    """Return values of a column as integers, and which of them are: sqlite keeps anything in any column.

    >>> integers((3, None, "7", 2.5))
    (array([3, 0, 0, 0]), array([ True, False, False, False]))
    """
    if set(map(type, values)) <= {int}:
        return np.array(values, np.int64), np.ones(len(values), bool)
    known = np.fromiter((type(value) is int for value in values), bool, len(values))
    return np.fromiter((v if type(v) is int else missing for v in values), np.int64, len(values)), known
