"""Nsight's files in a run folder: exports of Nsight Systems."""

from pathlib import Path

from stepscope.run.imports.format import Contents, FileHead, Format

SQLITE_MAGIC = b"SQLite format 3\0"


def _is_sqlite(head: FileHead) -> bool:
    return head.start.startswith(SQLITE_MAGIC)


def _look(path: Path) -> Contents:
    return Contents(what=path.name)


NSIGHT_SYSTEMS = Format(
    id="nsys",
    title="Nsight Systems export",
    ending="nsys.sqlite",
    is_it=_is_sqlite,
    look=_look,
)
