"""What is a format of another tool? How to tell it, its name in a run folder, and a look into a file of it."""

import zlib
from collections.abc import Callable
from pathlib import Path

from stepscope.dataclass import dataclass
from stepscope.side_file import open_side_file

HEAD_BYTES = 1 << 16
MAX_FILE_BYTES = 1 << 42
_GZIP = b"\x1f\x8b"
_WINDOW_BITS = 31
"""a gzip header is expected"""


BytesRead = Callable[[int], None]
"""told how many bytes of a file were read so far"""


def nobody(_read_bytes: int) -> None:
    """Be told, and tell nobody."""


@dataclass(frozen=True)
class FileHead:
    """What a format is told by: the name of a file, its size and its first bytes, unpacked where it is gzipped."""

    path: Path
    size: int
    start: bytes
    """at most HEAD_BYTES"""

    @property
    def name(self) -> str:
        """Return the file's name without `.gz`, in lower case."""
        return self.path.name.lower().removesuffix(".gz")


@dataclass(frozen=True)
class Contents:
    """What a look into a file found."""

    what: str
    """in a few words, for people: `3,442 kernels of 2 processes`"""
    ranks: tuple[int, ...] = ()
    """that the file itself names; empty where it says none"""
    whole_job: bool = False
    """whether it holds several ranks, so that it is no single rank's file"""


@dataclass(frozen=True)
class Format:
    """One format: told by `is_it`, kept in a run folder as `rank00000.<ending>` (or `job.<ending>`).

    `look` opens a file and says what it holds. It raises a `StepscopeError` of one sentence where the file is damaged,
    so that nothing unreadable is put into a run folder. `store` writes it into the run folder in the form that the
    reader takes; without one it is copied as it is.
    """

    id: str
    title: str
    """as in `Nsight Systems export`"""
    ending: str
    is_it: Callable[[FileHead], bool]
    look: Callable[[Path, BytesRead], Contents]
    store: Callable[[Path, Path], None] | None = None
    check_stored: bool = False
    """whether only what `store` wrote can be looked into"""
    other_endings: tuple[str, ...] = ()
    """further names under which files of this format lie in a run folder"""
    needs_rank: bool = True
    """whether a file is of use only where it is known whose it is"""

    @property
    def endings(self) -> tuple[str, ...]:
        """Return all endings of files of this format in a run folder."""
        return (self.ending, *self.other_endings)


def file_head(path: Path) -> FileHead:
    """Return the first bytes of a regular file; an `OSError` for anything else."""
    with open_side_file(path, max_bytes=MAX_FILE_BYTES) as f:
        start = f.read(HEAD_BYTES)
        size = path.stat().st_size
    if start.startswith(_GZIP):
        try:
            start = zlib.decompressobj(_WINDOW_BITS).decompress(start, HEAD_BYTES)
        except zlib.error:
            start = b""
    return FileHead(path, size, start)
