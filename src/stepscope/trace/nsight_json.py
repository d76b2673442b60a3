"""A JSON export of Nsight Systems (`nsys export --type=json`) to the sqlite export that `nsight` reads.

    {"table": "StringIds", "id": 7, "value": "aten::mm"}
    {"table": "CUPTI_ACTIVITY_KIND_KERNEL", "start": 12, "end": 40, "shortName": 7, ...}       a row of a table per line

Columns are those of the sqlite export. Older versions wrote other lines (`{"Type": 80, "CudaEvent": ...}`), which are
refused.
"""

import json
import re
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.errors import InputError
from stepscope.side_file import side_file_lines
from stepscope.trace.nsight import read_nsys
from stepscope.trace.read import Budget
from stepscope.trace.table import Trace

_NAME = re.compile(r"[A-Za-z_]\w{0,80}")
_MAX_TABLES, _MAX_COLUMNS, _ROWS_AT_ONCE = 500, 200, 5_000


def read_nsys_json(
    path: str | Path, *, progress: Callable[[int], None] | None = None, budget: Budget | None = None
) -> tuple[Trace, ...]:
    """Return the tables of a JSON export, by device and process. Raises like `read_nsys`."""
    with tempfile.TemporaryDirectory(prefix="stepscope-nsys-") as folder:
        export = Path(folder, "export.sqlite")
        to_sqlite(Path(path), export)
        return read_nsys(export, progress=progress, budget=budget, named=path)


def to_sqlite(source: Path, target: Path) -> None:
    """Write the rows of a JSON export into an sqlite file."""
    try:
        with sqlite3.connect(target) as db:
            rows, damaged = _fill(db, source)
        db.close()
    except sqlite3.Error as error:
        raise InputError(f"{source}: its rows fit no tables ({error}); use nsys export --type=sqlite") from error
    if damaged >= rows:
        raise InputError(
            f"{source}: not the JSON of a current Nsight Systems, which has a row of a table per line; "
            "export it again: nsys export --type=sqlite"
        )


def _fill(db: sqlite3.Connection, source: Path) -> tuple[int, int]:
    """Return how many lines are rows, and how many are not."""
    waiting: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    columns: dict[str, list[str]] = {}
    number = damaged = 0
    db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")
    for line in side_file_lines(source):
        row = _row(line)
        table = row.pop("table", None) if row else None
        if row is None or not isinstance(table, str) or not _NAME.fullmatch(table):
            damaged += bool(line.strip())
            continue
        columns.setdefault(table, [])
        if len(columns) > _MAX_TABLES:
            raise InputError(f"{source}: more than {_MAX_TABLES} tables; no export of Nsight Systems")
        number += 1
        waiting[table].append(row)
        if len(waiting[table]) == _ROWS_AT_ONCE:
            _insert(db, table, columns[table], waiting.pop(table))
    for table, rows in waiting.items():
        _insert(db, table, columns[table], rows)
    return number, damaged


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _insert(db: sqlite3.Connection, table: str, known: list[str], rows: list[dict[str, Any]]) -> None:
    if not known:  # ids of texts are the key, as in the sqlite export; all others begin with a column that is not used
        known.append("id" if table == "StringIds" else "_")
        db.execute(f'CREATE TABLE "{table}" ("{known[0]}"{" INTEGER PRIMARY KEY" if known[0] == "id" else ""})')
    taken = {name.lower() for name in known}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name.lower() not in taken and _NAME.fullmatch(name) and len(known) < _MAX_COLUMNS:
            db.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}"')
            known.append(name)
            taken.add(name.lower())
    marks, listed = ", ".join("?" * len(known)), ", ".join(f'"{name}"' for name in known)
    values = ([_value(row.get(name)) for name in known] for row in rows)
    db.executemany(f'INSERT OR IGNORE INTO "{table}" ({listed}) VALUES ({marks})', values)


def _value(value: Any) -> int | float | str | None:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or abs(value) < 1 << 63 else None
