"""Writing a result where the user asked for it: whole or not at all, never over what exists, never through a link."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError
from stepscope.run_folder import written_whole


def check_outputs(*paths: str | None, force: bool) -> None:
    """Raise where any of these outputs could not be written: before the work, so that none is written then."""
    asked = [path for path in paths if path]
    twice = next((path for path in asked if asked.count(path) > 1), None)
    if twice:
        raise UsageError(f"expected another name for each output, found {twice} twice; give one of them another name")
    for path in asked:
        if path != "-":
            refuse_existing(Path(path), force=force)
            _refuse_unwritable(Path(path))


def _refuse_unwritable(target: Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {target}: no folder at {folder}; make it first or choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write {target}: {folder} cannot be written; choose another place")


def write_output(path: str, text: str, *, force: bool) -> None:
    """Write `text` to `path`, or to standard output for `-`."""
    if path == "-":
        sys.stdout.write(text)
        return
    write_pieces(path, [text.encode(errors="replace")], force=force)


def write_json(path: str | None, document: Any, *, force: bool) -> None:
    """Write `document` as JSON to `path`, to standard output for `-`, nowhere for None."""
    if path:
        write_output(path, json.dumps(document, indent=1) + "\n", force=force)


def write_pieces(path: str | Path, pieces: Iterable[bytes], *, force: bool) -> int:
    """Write bytes to the file `path`, piece by piece, and return how many they are."""
    target = Path(path)
    refuse_existing(target, force=force)
    written = 0
    try:
        with written_whole(target) as f:
            for piece in pieces:
                written += f.write(piece)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose a place that can be written") from error
    return written


def refuse_existing(target: Path, *, force: bool) -> None:
    """Raise where `target` is a folder, or exists and must not be overwritten."""
    if target.is_dir():
        raise UsageError(f"expected a file to write, found a folder at {target}; give a file name in it")
    if (target.exists() or target.is_symlink()) and not force:
        raise UsageError(f"expected to create {target}, found it exists; use --force to overwrite, or another name")


def refuse_used_folder(path: str, *, force: bool) -> None:
    """Raise where `path` is a link, a file, or a folder that holds anything and `force` is not given."""
    folder = Path(path)
    if folder.is_symlink():
        raise UsageError(f"expected a folder to write into, found a link at {path}; give the folder itself")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"expected a folder to write into, found a file at {path}; give another name")
    if folder.is_dir() and not force and any(folder.iterdir()):
        raise UsageError(
            f"expected a new or empty folder, found one with files at {path}; use --force to overwrite files in it, "
            "or another name"
        )


def made_folder(path: str) -> Path:
    """Return the folder `path`, made where it is missing."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose a place that can be written") from error
    return Path(path)
