"""Where is the cache of a trace? Standard library only."""

from pathlib import Path

from stepscope.contract.run_folder import CACHE_FOLDER
from stepscope.digest import digest_of

MIN_RAW_BYTES = 32 << 20
"""Smaller traces are parsed faster than a cache is worth."""


def cache_file(path: Path, cache_folder: Path | None = None, *, ending: str = "columns") -> Path:
    """Return where a trace's cache lies. In a given folder, traces of equal name are told apart by where they are."""
    if cache_folder is None:
        return path.parent / CACHE_FOLDER / f"{path.name}.{ending}"
    where = digest_of(str(path.absolute()).encode(errors="surrogateescape"), 12)
    return cache_folder / f"{path.name}.{where}.{ending}"
