"""The text of the user's files that occur in frames, copied to where the helper takes it into the run folder."""

import linecache
from collections.abc import Iterable
from pathlib import Path

from stepscope.contract.owners import MAX_SOURCE_BYTES, MAX_SOURCE_FILE_BYTES


def copy_source(files: Iterable[str], root: str, folder: Path) -> list[str]:
    """Return which files, given by their paths below the root, were copied to `folder`, each at its own path there."""
    kept: list[str] = []
    left_bytes = MAX_SOURCE_BYTES
    for file in files:
        if Path(file).is_absolute() or ".." in Path(file).parts:
            continue
        text = _text_of(file, root)
        if text is None or len(text) > min(left_bytes, MAX_SOURCE_FILE_BYTES):
            continue
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        left_bytes -= len(text)
        kept.append(file)
    return kept


def _text_of(file: str, root: str) -> bytes | None:
    """Return a file's text, or that of a notebook's cell, which no file has."""
    if file.startswith("<"):
        return "".join(linecache.getlines(file)).encode() or None
    try:
        path = Path(root) / file
        return path.read_bytes() if path.stat().st_size <= MAX_SOURCE_FILE_BYTES else None
    except OSError:
        return None
