"""Output files: written whole or not at all, never over an existing file without --force, never through a link.

Every output of every command goes through here or through `atomic_write`; both check the path with `output_path`.
"""

import io
import os
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
from stepscope.units import printable

if TYPE_CHECKING:
    from rich.console import Console


def check_outputs(*paths: str | None, force: bool) -> None:
    """Raise if any of these outputs could not be written, before the work starts."""
    given = [path for path in paths if path]
    twice = next((path for path in given if given.count(path) > 1), None)
    if twice:
        raise UsageError(f"two outputs have the name {twice}; rename one of them")
    for path in given:
        if _is_address(path):
            from stepscope.run.remote import refuse_object

            refuse_object(path, force=force)
        elif path != "-":
            target, folder = Path(path), Path(path).parent
            refuse_existing(target, force=force)
            if not os.path.isdir(folder):  # noqa: PTH112 - also of names that are too long
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


def print_rendered(render: Callable[..., str]) -> None:
    """Print what `render(width=, unicode=, colour=)` returns for standard output: 80 columns and plain in a pipe."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    known = sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    colour = bool(os.environ.get("FORCE_COLOR")) or known
    sys.stdout.write(
        render(
            width=shutil.get_terminal_size().columns,
            unicode=encoding.startswith("utf"),
            colour=colour and not os.environ.get("NO_COLOR"),
        )
    )


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
    with _writing(path):
        file = opened_to_grow(path)

    def write(document: Any) -> None:
        with _writing(path):
            file.write(json_with_notes(document)[0].encode(errors="replace") + b"\n")

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
    with _writing(path), atomic_write(target) as f:
        for piece in pieces:
            written += f.write(piece)
    return written


def refuse_existing(target: Path, *, force: bool) -> None:
    """Raise where `target` is anything but a regular file or new, or exists and must not be overwritten."""
    with _writing(target):
        why_not = why_no_file(target)
        if why_not is not None:
            what = "give a file name in it" if target.is_dir() and not target.is_symlink() else "give another name"
            raise UsageError(f"cannot write {target}: {why_not}; {what}")
        why_not = why_no_folder(target.absolute().parent)
        if why_not is not None:
            raise UsageError(f"cannot write {target}: {why_not}; give a path without it")
        exists = os.path.lexists(target)
    if exists and not force:
        raise UsageError(f"{target} already exists; use --force")


def refuse_used_folder(path: str, *, force: bool) -> None:
    """Raise where `path` is a link, a file, or a folder that holds anything and `force` is not given."""
    if _is_address(path):
        raise UsageError(f"cannot write into {path}: folders are written on this machine only; give a path")
    folder = Path(path)
    with _writing(path):
        why_not = why_no_folder(folder.absolute())
        if folder.is_symlink():
            raise UsageError(f"{path} is a link; give the folder it leads to")
        if why_not is not None:
            raise UsageError(f"cannot write into {path}: {why_not}; give a path without it")
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{path} is a file, not a folder; give another name")
        used = folder.is_dir() and any(folder.iterdir())
    if used and not force:
        raise UsageError(f"{path} is not empty; use --force to overwrite files in it, or give another name")


def make_folder(path: str) -> Path:
    """Return the folder `path`, made where it is missing."""
    with _writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


@contextmanager
def whole_folder(path: str, *, force: bool) -> Iterator[Path]:
    """Give a new folder in or next to `path`, whose files move there at the end; none is left where that fails."""
    folder = Path(path)
    staged = (folder if folder.is_dir() else folder.parent) / f".{os.urandom(8).hex()}.partial"
    try:
        with _writing(path):
            staged.mkdir(parents=True)
            yield staged
            files = [name.relative_to(staged) for name in staged.rglob("*") if name.is_file()]
            for name in files:
                refuse_existing(folder / name, force=force)
            for name in files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (staged / name).replace(folder / name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _is_address(path: str | Path) -> bool:
    if "://" not in str(path):  # as most: nothing is imported for them
        return False
    from stepscope.run.address import is_address

    return is_address(path)


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot write {printable(str(path))}: {why}; choose a place that can be written") from error
