"""Which lines of a file beside the traces are read, and what is kept of each?

Anybody may have put the file there, and a job of a thousand ranks leaves thousands of them: all together are read up to
MAX_FOLDER_BYTES, each up to its even share, and of each line only what `keep` makes of it stays. Lines that are no JSON
objects are counted; a last line that is cut is normal while the job runs. What is not read is said.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar

from stepscope.contract.run_folder import json_object
from stepscope.dataclass import dataclass
from stepscope.side_file import is_number, side_file_lines
from stepscope.units import readable_bytes

T = TypeVar("T")
MAX_FOLDER_BYTES = 128 << 20
MIN_SHARE_BYTES = 64 << 10
MAX_NAME = 200


@dataclass(frozen=True)
class KeptLines(Generic[T]):
    """What the lines of one file became."""

    lines: tuple[T, ...] = ()
    damaged: int = 0
    unread: tuple[str, ...] = ()
    """why not all of it was read"""


def share_of_each(num_files: int) -> int:
    """Return up to how many bytes each of so many files is read."""
    return max(MIN_SHARE_BYTES, MAX_FOLDER_BYTES // max(num_files, 1))


def kept_lines(
    path: Path, keep: Callable[[dict[str, Any]], T | None], *, max_bytes: int, max_kept: int
) -> KeptLines[T]:
    """Return what `keep` makes of each JSON object in a file, without the None among them.

    No more than `max_kept`: what a line becomes takes more memory than a short line does.
    """
    kept: list[T] = []
    unread: list[str] = []
    damaged, last_is_damaged = 0, False
    for text in text_lines(path, max_bytes=max_bytes, say=unread.append):
        if len(kept) >= max_kept:
            unread.append(f"{path.name}: only its first {max_kept:,} lines were read")
            break
        if not text.strip():
            continue
        line = json_object(text)
        last_is_damaged = line is None
        damaged += last_is_damaged
        made = keep(line) if line is not None else None
        if made is not None:
            kept.append(made)
    return KeptLines(tuple(kept), damaged - last_is_damaged, tuple(unread))


def text_lines(path: Path, *, max_bytes: int, say: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the lines of a regular file up to a size; `say` is told why there are not more, where there are."""
    left = max_bytes
    try:
        with closing(side_file_lines(path)) as found:
            for line in found:
                left -= len(line)
                if left < 0:
                    say(f"{path.name}: only its first {readable_bytes(max_bytes)} were read")
                    return
                yield line
    except OSError as error:
        say(f"{path.name}: {error.strerror or error}")


def number(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    return float(value) if is_number(value) else None  # type: ignore[arg-type]


def whole(value: object) -> int | None:
    """Return a number as a whole one, None for anything else."""
    return int(value) if is_number(value) else None  # type: ignore[call-overload]


def name(value: object) -> str:
    """Return a name of a length that names have, an empty one for what is none."""
    return value[:MAX_NAME] if isinstance(value, str) else str(value)[:MAX_NAME] if is_number(value) else ""
