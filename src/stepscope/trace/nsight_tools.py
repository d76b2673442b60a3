"""NVIDIA's own report files through NVIDIA's own programs, where they are installed.

    x.nsys-rep  --nsys export-->  sqlite        x.ncu-rep  --ncu --import-->  CSV

The programs are given a file and an output, never a shell line; they have MAX_SECONDS.
"""

import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.cache_files import is_trusted_file, make_trusted_folder
from stepscope.contract.run_folder import CACHE_FOLDER, atomic_write
from stepscope.errors import InputError, TraceError
from stepscope.side_file import side_file_lines
from stepscope.trace.nsight import read_nsys
from stepscope.trace.read import Budget
from stepscope.trace.streams import Stream
from stepscope.trace.table import Trace
from stepscope.units import digest_of, printable

_MAX_SECONDS = 3600
# characters of a program's output that are shown
_SAID = 200
_NAMES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_BY_HAND = {
    "nsys": "nsys export --type=sqlite --include-blobs=true {}",
    "ncu": "ncu --import {} --csv --page raw",
}


def exported_report(path: Path, *, cache_folder: Path | None = None, keep: bool = True) -> Path:
    """Return the sqlite export of a `.nsys-rep`, cached if `keep`.

    It is in `.stepscope` next to the report, in `cache_folder`, or where neither is writable in the temporary folder.
    """
    return _exported(path, cache_folder or path.parent / CACHE_FOLDER, "sqlite", export_nsys, keep=keep)


def exported_metrics(path: Path) -> Path:
    """Return a `.ncu-rep` as CSV, cached in `.stepscope` next to it, or in the temporary folder."""
    return _exported(path, path.parent / CACHE_FOLDER, "csv", export_ncu, keep=True)


def _exported(path: Path, folder: Path, ending: str, export: Callable[[Path, Path], None], *, keep: bool) -> Path:
    status = Stream(path).path.stat()
    key = f"{path.absolute()} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape")
    is_kept = False
    with suppress(OSError):
        is_kept = keep and make_trusted_folder(folder) and os.access(folder, os.W_OK)
    parent = folder if is_kept else Path(tempfile.mkdtemp(prefix="stepscope-export-"))
    target = parent / f"{path.name}.{digest_of(key, 12)}.{ending}"
    if not is_trusted_file(target):
        export(path, target)
        target.chmod(0o600)
    return target


def export_nsys(path: Path, target: Path) -> None:
    """Write the sqlite export of a `.nsys-rep`; a `TraceError` where `nsys` is missing or fails."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as made:
        out = Path(made, "export.sqlite")
        options = ["export", "--type=sqlite", "--include-blobs=true", "--force-overwrite=true"]
        _run("nsys", [*options, f"--output={out}", str(path.absolute())], path, Path(made))
        if not out.is_file():
            raise TraceError(f"{printable(str(path))}: nsys succeeded but wrote nothing; run it by hand")
        out.replace(target)


def export_ncu(path: Path, target: Path) -> None:
    """Write a `.ncu-rep` as CSV; a `TraceError` where `ncu` is missing or fails."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as made:
        done = _run("ncu", ["--import", str(path.absolute()), "--csv", "--page", "raw"], path, Path(made))
    with atomic_write(target) as f:
        f.write(done)


EXPORTS = {"nsys": export_nsys, "ncu": export_ncu}


def require_tool(tool: str, path: Path) -> str:
    """Return the path of a program; a `TraceError` with what to do instead where it is not installed."""
    program = shutil.which(tool)
    if program is None:
        raise TraceError(
            f"{printable(str(path))}: only {_NAMES[tool]} reads this format, and {tool} is not on PATH; where it is, "
            f"run {_BY_HAND[tool].format(printable(path.name))} and give what it writes"
        )
    return program


def _run(tool: str, arguments: list[str], path: Path, folder: Path) -> bytes:
    import subprocess  # only where there is one to run

    program = require_tool(tool, path)
    shown, by_hand = printable(str(path)), _BY_HAND[tool].format(printable(path.name))
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAX_SECONDS,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TraceError(f"{shown}: {tool} took more than {_MAX_SECONDS} s; run {by_hand}") from error
    except OSError as error:
        raise TraceError(f"{shown}: {tool} cannot be started: {error.strerror}; run {by_hand}") from error
    if done.returncode:
        said = printable((done.stderr or done.stdout).decode(errors="replace").strip()[-_SAID:])
        raise TraceError(f"{shown}: {tool} could not export it (exit code {done.returncode}): {said}")
    return done.stdout


# A JSON export of Nsight Systems (`nsys export --type=json`) to the sqlite export that `nsight` reads.
#
#     {"table": "StringIds", "id": 7, "value": "aten::mm"}
#     {"table": "CUPTI_ACTIVITY_KIND_KERNEL", "start": 12, "end": 40, "shortName": 7, ...}  a row of a table per line
#
# Columns are those of the sqlite export. Older versions wrote other lines (`{"Type": 80, "CudaEvent": ...}`), which are
# refused.

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
