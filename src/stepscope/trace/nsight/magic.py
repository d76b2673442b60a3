"""Is a file a report of Nsight or an export of one? Told by its name or first bytes, without the reader."""

from pathlib import Path

from stepscope.side_file import open_side_file

NSYS_REPORT, NCU_REPORT = ".nsys-rep", ".ncu-rep"
MAGIC = b"SQLite format 3\0"
MAX_FILE_BYTES = 1 << 42


def is_sqlite(path: Path) -> bool:
    """Return whether a regular file begins as an sqlite file does; False where it is none or cannot be read."""
    try:
        with open_side_file(path, max_bytes=MAX_FILE_BYTES) as f:
            return f.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
