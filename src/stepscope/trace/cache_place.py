"""Location and key of a trace's cache. Standard library only."""

import os
from pathlib import Path
from typing import IO, Any

from stepscope.contract.run_folder import CACHE_FOLDER
from stepscope.side_file import open_side_file
from stepscope.units import Digest, digest_of

# Smaller traces are parsed faster than a cache is worth.
MIN_RAW_BYTES = 32 << 20


def cache_file(path: Path, cache_folder: Path | None = None, *, ending: str = "columns") -> Path:
    """Return the path of a trace's cache. In a given folder, traces of equal name differ by a hash of their path."""
    if cache_folder is None:
        return path.parent / CACHE_FOLDER / f"{path.name}.{ending}"
    where = digest_of(str(path.absolute()).encode(errors="surrogateescape"), 12)
    return cache_folder / f"{path.name}.{where}.{ending}"


# Key of a file: size, times and sampled content.
#
# Only the clock can set back the inode's time of change; the content also distinguishes copies. Standard library only:
# a cached report is found before anything heavy is imported.

_SAMPLE_BYTES = 1 << 14
_NUM_SAMPLES = 32


def content_key(path: Path) -> dict[str, Any] | None:
    """Return size, times and sampled content of a file, None where it cannot be read."""
    try:
        with open_side_file(path, max_bytes=1 << 42) as f:
            status = os.fstat(f.fileno())
            content = _sampled(f, status.st_size)
    except OSError:
        return None
    return _size_and_times(status) | {"content": content}


def is_unchanged(path: Path, key: dict[str, Any]) -> bool:
    """Return whether a file still has the size and times of its key."""
    try:
        now = _size_and_times(path.stat())
    except OSError:
        return False
    return all(key[name] == value for name, value in now.items())


def _size_and_times(status: os.stat_result) -> dict[str, Any]:
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}


def _sampled(f: IO[bytes], size: int) -> str:
    digest = Digest()
    last = max(size - _SAMPLE_BYTES, 0)
    for at in sorted({last * i // (_NUM_SAMPLES - 1) for i in range(_NUM_SAMPLES)}):
        f.seek(at)
        digest.add(f.read(_SAMPLE_BYTES))
    return digest.text()
