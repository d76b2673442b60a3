"""Exports whose tables claim more than the file holds are refused; sound ones of any layout are read."""

import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trace.nsight.kineto_as_nsys import MACHINE
from tests.trace.nsight.test_read_nsys import small

from stepscope.cli.main import main
from stepscope.errors import TraceError
from stepscope.trace.nsight import overview, read_nsys
from stepscope.trace.sqlite_file import TablePages

PAGE = 4096
KERNELS, CALLS, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
THREAD = MACHINE | 7 << 24 | 70


def export_with_range(path: Path, text: str) -> Path:
    export = small(path)
    export.insert(RANGES, 100, 200, 59, text, None, THREAD, 0, None)
    export.close()
    return path


def root_of(path: Path, table: str) -> int:
    db = sqlite3.connect(path)
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    db.close()
    return int(root)


def interior(child: int, fan: int, *, head: int = 0) -> bytes:
    """Return an interior page whose children are all the same page."""
    cells = (struct.pack(">I", child) + b"\1") * (fan - 1)
    offsets = struct.pack(f">{fan - 1}H", *range(PAGE - len(cells), PAGE, 5))
    page = struct.pack(">BHHHBI", 5, 0, fan - 1, PAGE - len(cells), 0, child) + offsets
    return bytes(head) + page + bytes(PAGE - head - len(page) - len(cells)) + cells


def share_children(path: Path, root: int, *, levels: int, fan: int) -> None:
    """Put levels of interior pages above a leaf, which is then there `fan ** levels` times."""
    data = bytearray(path.read_bytes())
    at = (root - 1) * PAGE
    head = 100 if root == 1 else 0
    leaf = bytearray(data[at : at + PAGE])
    if head:  # cells stay where they are, the header and their offsets move
        leaf = leaf[head : head + 500] + bytes(head) + leaf[head + 500 :]
    data += leaf
    for _ in range(levels - 1):
        data += interior(len(data) // PAGE, fan)
    data[at + head : at + PAGE] = interior(len(data) // PAGE, fan, head=head)[head:]
    struct.pack_into(">I", data, 28, len(data) // PAGE)
    path.write_bytes(data)


def shared_kernels(path: Path) -> None:
    share_children(path, root_of(path, KERNELS), levels=2, fan=100)


def shared_calls(path: Path) -> None:
    share_children(path, root_of(path, CALLS), levels=1, fan=200)


def shared_strings(path: Path) -> None:
    share_children(path, root_of(path, "StringIds"), levels=3, fan=5)


def shared_versions(path: Path) -> None:
    share_children(path, root_of(path, "META_DATA_EXPORT"), levels=12, fan=2)


def shared_schema(path: Path) -> None:
    share_children(path, 1, levels=1, fan=100)


def same_root(path: Path) -> None:
    """Give two tables the same rows."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (root_of(path, KERNELS), CALLS))
    db.commit()
    db.close()


def overlap_cells(path: Path, number: int) -> None:
    """Let so many rows be the same bytes of a page."""
    data = bytearray(path.read_bytes())
    at = (root_of(path, RANGES) - 1) * PAGE
    (cell,) = struct.unpack_from(">H", data, at + 8)
    assert cell > 8 + 2 * number
    struct.pack_into(">H", data, at + 3, number)
    struct.pack_into(f">{number}H", data, at + 8, *[cell] * number)
    path.write_bytes(data)


def overlapping_rows(path: Path) -> None:
    overlap_cells(path, 500)


def shared_overflow_pages(path: Path) -> None:
    overlap_cells(export_with_range(path, "a" * 100_000), 20)


HOSTILE = [
    shared_kernels,
    shared_calls,
    shared_strings,
    shared_versions,
    shared_schema,
    same_root,
    overlapping_rows,
    shared_overflow_pages,
]


@pytest.mark.parametrize("change", HOSTILE)
@pytest.mark.parametrize("read", [read_nsys, overview])
def test_more_rows_than_the_bytes_can_hold_are_refused(
    tmp_path: Path, change: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    path = export_with_range(tmp_path / "x.sqlite", "aten::mm" + "m" * 2000)
    read(path)
    change(path)
    with pytest.raises(TraceError, match="more rows than the file's bytes can hold"):
        read(path)


@pytest.mark.parametrize("command", [["report"], ["import", "--into", "run"]])
def test_commands_refuse_61_million_rows_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    share_children(
        export_with_range(Path("x.sqlite"), "aten::mm"), root_of(Path("x.sqlite"), KERNELS), levels=3, fan=400
    )
    assert main([*command, "x.sqlite"]) == 2
    said = capsys.readouterr().err
    assert "more rows than the file's bytes can hold" in said and said.count("\n") == 1


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_sound_files_of_any_layout_fit(tmp_path: Path, page_bytes: int) -> None:
    path = tmp_path / "x.sqlite"
    db = sqlite3.connect(path)
    db.executescript(
        f"PRAGMA page_size = {page_bytes}; CREATE TABLE a (id INTEGER PRIMARY KEY, text TEXT);"
        "CREATE TABLE b (text TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID; CREATE INDEX c ON a (text);"
        + "".join(f"CREATE TABLE t{i} (x);" for i in range(60))  # the schema takes several pages
    )
    rows = [(i, f"{i} " * (i % 900)) for i in range(4000)]
    db.executemany("INSERT INTO a VALUES (?, ?)", rows)
    db.executemany("INSERT INTO b VALUES (?, ?)", [(f"{i} {text}", i) for i, text in rows])
    db.execute("DELETE FROM a WHERE id % 3 = 0")  # pages in the free list
    db.commit()
    pages = TablePages(path)
    roots = [root for (root,) in db.execute("SELECT rootpage FROM sqlite_master")]
    db.close()
    for root in (1, *roots):
        pages.claim(root)
    with pytest.raises(sqlite3.DatabaseError, match="more rows"):
        pages.claim(roots[0])
