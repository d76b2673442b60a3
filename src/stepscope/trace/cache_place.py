"""Where does what is kept of a trace lie, and may it be written there? Standard library only."""

import os
import stat
from collections.abc import Callable
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


def try_to_write(target: Path, write: Callable[[], None]) -> None:
    """Let `write` make a file of a cache; where that is not possible, or not what the user asked for, there is none."""
    try:
        if _kept_from_writing(target.parent.parent):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.parent.name == CACHE_FOLDER and _is_foreign(target.parent):
            return
        write()
    except OSError:
        return


def _kept_from_writing(folder: Path) -> bool:
    """Return whether nobody may write there: the mode says so, which the superuser's writes would ignore."""
    return folder.is_dir() and not folder.stat().st_mode & 0o222


def _is_foreign(folder: Path) -> bool:
    """Return whether a folder is a link, or somebody else's: writing there is not what the user asked for."""
    status = folder.lstat()
    return not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), folder.parent.stat().st_uid)
