"""What a command prints and writes: lines, files and a progress bar."""

import argparse
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.contract.run_folder import atomic_write
from stepscope.errors import UsageError
from stepscope.side_file import opened_to_grow, why_no_file, why_no_folder
from stepscope.units import escaped, json_with_notes, printable

if TYPE_CHECKING:
    from stepscope.report.sheet import Sheet

# The one place that prints plain lines, with every name escaped for the terminal.
#
# Pages are escaped by `sheet_text`. Lines about an answer wait for the answer: a command that fails halfway prints one
# line and exits with 2, with nothing before it.

_T = TypeVar("_T")
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
# lines about the answer of the running command; None outside a command, where they are printed at once
_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def print_line(line: str = "") -> None:
    """Print one line on standard output, unbuffered."""
    print(escaped(line), flush=True)


def print_stderr(line: str) -> None:
    """Print one line on standard error, unbuffered."""
    print(escaped(line), file=sys.stderr, flush=True)


def warn(*lines: str) -> None:
    """Print warnings about the answer on standard error, after the answer."""
    for line in lines:
        say_with_answer(f"warning: {printable(line, width=400)}")


def say_with_answer(line: str) -> None:
    """Print one line on standard error once the command has succeeded; nothing with --quiet."""
    if is_quiet():
        return
    held = _held.get()
    if held is None:
        print_stderr(line)
    else:
        held.append(line)


def is_quiet() -> bool:
    """Return whether only the answer and errors are printed."""
    return _quiet.get()


def quiet() -> AbstractContextManager[bool]:
    """Print only the answer and errors."""
    return _set(_quiet, True)


def lines_held() -> AbstractContextManager[list[str] | None]:
    """Collect lines about the answer in the list that this yields."""
    return _set(_held, [])


@contextmanager
def _set(variable: ContextVar[_T], value: _T) -> Iterator[_T]:
    before = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(before)


# Output files: written whole or not at all, never over an existing file without --force, never through a link.
#
# Every output of every command goes through here or through `atomic_write`; both check the path with `output_path`.


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


def write_output(path: str, content: str | Iterable[bytes], *, force: bool) -> None:
    """Write text or pieces of UTF-8 to `path`, or to standard output for `-`."""
    pieces = [content.encode(errors="replace")] if isinstance(content, str) else content
    if path != "-":
        write_pieces(path, pieces, force=force)
        return
    sys.stdout.flush()
    for piece in pieces:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.buffer.write(piece)
        else:
            sys.stdout.write(piece.decode())
    sys.stdout.flush()


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


def show(args: argparse.Namespace, document: Any, sheet: "Callable[[], Sheet]") -> None:
    """Write the answer of a command as JSON, as a page and as text, each where it is requested."""
    json, html = getattr(args, "json", None), getattr(args, "html", None)
    write_json(json, document, force=args.force)
    if json == "-" and not html:
        return
    made = sheet()
    if html:
        from stepscope.report.html.sheets import sheet_page

        write_output(html, sheet_page(made), force=args.force)
    if "-" not in (json, html):
        from stepscope.report.sheet_text import sheet_text

        print_rendered(partial(sheet_text, made, verbose=args.verbose))


def write_json(path: str | None, document: Any, *, force: bool) -> None:
    """Write `document` as JSON to `path`, to standard output for `-`, nowhere for None."""
    if path:
        text, notes = json_with_notes(document, indent=1)
        write_output(path, text + "\n", force=force)
        warn(*notes)


@contextmanager
def growing_lines(path: str, *, force: bool) -> Iterator[Callable[[Any], None]]:
    """Give what writes a document as one line of JSON, seen at once: to a file that grows, or standard output for `-`.

    Unlike other outputs it cannot be written atomically: it is read while the command runs.
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


# A progress bar on standard error for work that takes more than a second: share, rate and time left.

# called with the amount done and the total
Progress = Callable[[int, int], None]

BYTES = "bytes"
_REDRAWN_S = 0.1


def reading_progress() -> AbstractContextManager[Progress | None]:
    """Return the progress bar of files being read, in bytes."""
    return work_progress("reading", unit=BYTES)


@contextmanager
def work_progress(what: str, *, unit: str) -> Iterator[Progress | None]:
    """Yield a callback that takes the amount done and the total, or None if standard error is no terminal.

    `unit` is what the rate counts: `BYTES`, or a plural such as `"slices"`.
    """
    if is_quiet() or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what, unit)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._started_s = self._drawn_s = time.monotonic()
        self._lock = threading.Lock()

    def update(self, done: int, total: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._started_s < 1 or now_s - self._drawn_s < _REDRAWN_S:
                return
            self._drawn_s, share = now_s, min(1.0, done / max(total, 1))
            per_s = done / (now_s - self._started_s)
            rate = rate_text(per_s, (total - done) / per_s if per_s else None, self._unit)
            self._write(f"{self._what} {'#' * round(30 * share):<30} {100 * share:3.0f} % {rate}")

    def close(self) -> None:
        if self._drawn_s > self._started_s:
            self._write("")

    def _write(self, line: str) -> None:
        room = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{line[:room]}", end="", file=sys.stderr, flush=True)


def rate_text(per_s: float | None, left_s: float | None, unit: str) -> str:
    """Return rate and remaining time in words, empty if the rate is unknown.

    >>> rate_text(2.5e6, 75.2, BYTES), rate_text(0.05, None, "runs")
    ('2.5 MB/s, 1:16 left', '3.0 runs/min')
    """
    if not per_s:
        return ""
    if unit == BYTES:
        rate = f"{per_s / 1e6:,.1f} MB/s"
    else:
        rate = f"{per_s:,.1f} {unit}/s" if per_s >= 1 else f"{60 * per_s:,.1f} {unit}/min"
    if left_s is None:
        return rate
    minutes, seconds = divmod(-int(-left_s // 1), 60)
    return f"{rate}, {minutes}:{seconds:02d} left"
