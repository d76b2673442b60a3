"""Writing a result where the user asked for it: whole or not at all, never over what exists, never through a link.

Every output of every command goes through here or through `atomic_write`, and both ask `output_path`.
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.messages import warn
from stepscope.contract.run_folder import atomic_write
from stepscope.errors import UsageError
from stepscope.json_text import json_with_notes
from stepscope.output_path import opened_to_grow, why_no_file, why_no_folder
from stepscope.units import escaped, printable

if TYPE_CHECKING:
    from rich.console import Console

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def check_outputs(*paths: str | None, force: bool) -> None:
    """Raise where any of these outputs could not be written: before the work, so that none is written then."""
    asked = [path for path in paths if path]
    twice = next((path for path in asked if asked.count(path) > 1), None)
    if twice:
        raise UsageError(f"two outputs have the name {twice}; rename one of them")
    for path in asked:
        if _is_address(path):
            from stepscope.run.remote import refuse_object

            refuse_object(path, force=force)
        elif path != "-":
            refuse_existing(Path(path), force=force)
            _refuse_unwritable(Path(path))


def _refuse_unwritable(target: Path) -> None:
    folder = target.parent
    if not _is_folder(folder):
        raise UsageError(f"cannot write {target}: no folder at {folder}; make it first or choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write {target}: {folder} cannot be written; choose another place")


def write_output(path: str, text: str, *, force: bool) -> None:
    """Write `text` to `path`, or to standard output for `-`; as UTF-8, whatever the terminal speaks."""
    if path != "-":
        write_pieces(path, [text.encode(errors="replace")], force=force)
        return
    sys.stdout.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.buffer.write(text.encode(errors="replace"))
        sys.stdout.buffer.flush()
    else:
        sys.stdout.write(text)


def terminal() -> "Console":
    """Return the console for standard output."""
    from stepscope.report.terminal import console

    return console(sys.stdout)


def print_kept(text: str) -> None:
    """Print text of an earlier report, of which colours stay and all else that steers a terminal is escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    pieces = _COLOUR.split(text)
    sys.stdout.write("".join(p if i % 2 else escaped(p, keep="\n") for i, p in enumerate(pieces)))


def write_json(path: str | None, document: Any, *, force: bool) -> None:
    """Write `document` as JSON to `path`, to standard output for `-`, nowhere for None."""
    if path:
        text, notes = json_with_notes(document, indent=1)
        write_output(path, text + "\n", force=force)
        for note in notes:
            warn(note)


@contextmanager
def growing_lines(path: str, *, force: bool) -> Iterator[Callable[[Any], None]]:
    """Give what writes a document as one line of JSON, seen at once: to a file that grows, or standard output for `-`.

    Unlike other outputs it cannot be whole or not at all: somebody reads it while the command runs.
    """
    if path == "-":
        yield lambda document: write_output("-", json_with_notes(document)[0] + "\n", force=force)
        return
    if _is_address(path):
        raise UsageError(f"cannot write {path}: a file that grows has to be on this machine; give a path")
    check_outputs(path, force=force)
    try:
        file = opened_to_grow(path)
    except OSError as error:
        raise _cannot_write(path, error) from error

    def write(document: Any) -> None:
        try:
            file.write(json_with_notes(document)[0].encode(errors="replace") + b"\n")
        except OSError as error:
            raise _cannot_write(path, error) from error

    with file:
        yield write


def write_pieces(path: str | Path, pieces: Iterable[bytes], *, force: bool) -> int:
    """Write bytes to the file or address `path`, piece by piece, and return how many they are."""
    if _is_address(path):
        from stepscope.run.remote import write_object

        return write_object(str(path), pieces, force=force)
    target = Path(path)
    refuse_existing(target, force=force)
    written = 0
    try:
        with atomic_write(target) as f:
            for piece in pieces:
                written += f.write(piece)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return written


def refuse_existing(target: Path, *, force: bool) -> None:
    """Raise where `target` is anything but a regular file or new, or exists and must not be overwritten."""
    try:
        why_not = why_no_file(target)
        if why_not is not None:
            what = "give a file name in it" if target.is_dir() and not target.is_symlink() else "give another name"
            raise UsageError(f"cannot write {target}: {why_not}; {what}")
        why_not = why_no_folder(target.absolute().parent)
        if why_not is not None:
            raise UsageError(f"cannot write {target}: {why_not}; give a path without it")
        exists = os.path.lexists(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    if exists and not force:
        raise UsageError(f"{target} already exists; use --force")


def refuse_used_folder(path: str, *, force: bool) -> None:
    """Raise where `path` is a link, a file, or a folder that holds anything and `force` is not given."""
    if _is_address(path):
        raise UsageError(f"cannot write into {path}: folders are written on this machine only; give a path")
    folder = Path(path)
    try:
        why_not = why_no_folder(folder.absolute())
        if folder.is_symlink():
            raise UsageError(f"{path} is a link; give the folder it leads to")
        if why_not is not None:
            raise UsageError(f"cannot write into {path}: {why_not}; give a path without it")
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{path} is a file, not a folder; give another name")
        used = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise _cannot_write(path, error) from error
    if used and not force:
        raise UsageError(f"{path} is not empty; use --force to overwrite files in it, or give another name")


def make_folder(path: str) -> Path:
    """Return the folder `path`, made where it is missing."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return Path(path)


@contextmanager
def whole_folder(path: str, *, force: bool) -> Iterator[Path]:
    """Give a new folder in or next to `path`, whose files move there at the end; none is left where that fails."""
    folder = Path(path)
    staged = (folder if folder.is_dir() else folder.parent) / f".{os.urandom(8).hex()}.partial"
    try:
        staged.mkdir(parents=True)
        yield staged
        files = [name.relative_to(staged) for name in staged.rglob("*") if name.is_file()]
        for name in files:
            refuse_existing(folder / name, force=force)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).replace(folder / name)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _is_address(path: str | Path) -> bool:
    if "://" not in str(path):  # as most: nothing is imported for them
        return False
    from stepscope.run.address import is_address

    return is_address(path)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _cannot_write(path: str | Path, error: OSError) -> UsageError:
    why = error.strerror or str(error)
    return UsageError(f"cannot write {printable(str(path))}: {why}; choose a place that can be written")
