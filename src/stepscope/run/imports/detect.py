"""Which format is a file of, and which such files lie in a run folder?

Told by content. A name may be anything: a dump called `nccl_trace_rank_3` and one called `rank00003.flight.pickle` are
the same to every reader.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from stepscope.contract.run_folder import CACHE_FOLDER, RUN_JSON
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.run.imports.format import Format, file_head
from stepscope.run.sources import rank_in_name
from stepscope.units import printable

MAX_FILES = 100_000
"""of a folder that are looked at"""
_OURS = re.compile(r"^rank\d{5,9}\.(steps\.jsonl|owners\.json\.gz|telemetry\.jsonl|memory\.jsonl|collectives\.jsonl)$")

_TRACE = re.compile(r"\.pt\.trace\.json(\.gz|\.zst)?$")


@dataclass(frozen=True)
class DetectedFile:
    """One file of a known format."""

    path: Path
    format: Format
    rank: int | None
    """by the file's name; None where that does not say"""


def format_of(path: Path) -> Format | None:
    """Return the format of a file, None where no known one fits; an `InputError` where it cannot be read."""
    try:
        head = file_head(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{printable(str(path))}: cannot be read: {reason}") from error
    from stepscope.run.imports.known import FORMATS  # all readers, only where there is a file to look at

    return next((known for known in FORMATS if known.is_it(head)), None)


def files_beside(folder: Path) -> tuple[DetectedFile, ...]:
    """Return the files of known formats that lie in a run folder, by name; what cannot be read is left out."""
    return _detected(_candidates(folder))


def _detected(paths: list[Path]) -> tuple[DetectedFile, ...]:
    found = []
    for path in paths:
        try:
            known = _format_of_unchanged(path, path.stat().st_mtime_ns)
        except (InputError, OSError):  # said by whoever reads it
            continue
        if known is not None:
            found.append(DetectedFile(path, known, rank_in_name(path.name)))
    return tuple(found)


def beside(folder: Path, format_id: str, *, but: Collection[str] = ()) -> tuple[DetectedFile, ...]:
    """Return the files of one format in a run folder, by name; traces, and those named in `but`, are not opened."""
    return tuple(one for one in _detected(others_in(folder, but=but)) if one.format.id == format_id)


def others_in(folder: Path, *, but: Collection[str] = ()) -> list[Path]:
    """Return the files of a run folder whose name does not say what they are, less those named in `but`."""
    return [path for path in _candidates(folder) if not _TRACE.search(path.name) and path.name not in but]


@lru_cache(maxsize=4096)
def _format_of_unchanged(path: Path, _mtime_ns: int) -> Format | None:
    return format_of(path)


def _candidates(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())[:MAX_FILES]
    except OSError:
        return []
    return [path for path in entries if not _is_known_otherwise(path.name) and path.is_file()]


def _is_known_otherwise(name: str) -> bool:
    """Return whether a name is one of our own files, which no other tool wrote."""
    return name.startswith(".") or name in (RUN_JSON, CACHE_FOLDER) or bool(_OURS.match(name))
