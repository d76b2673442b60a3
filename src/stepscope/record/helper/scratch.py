"""A local folder of ours for temporary files, held while its owners live, removed by them or by a later run.

The temporary folder is shared with other users and, where containers share it, with other containers, whose process
numbers mean nothing here. So neither a name nor a number shows that a folder may be removed. This does:

    stepscope-XXXXXXXX/             made by `mkdtemp`, owned by this user
        .stepscope-scratch          our marker, owned by this user, on which every living owner holds a shared lock

A process that gets the exclusive lock knows that no owner lives, on this machine or another. Without file locks
nothing is swept.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # no POSIX: folders are then removed by their owners alone
    fcntl = None  # type: ignore[assignment]

MARKER = ".stepscope-scratch"
_PREFIX = "stepscope-"
_WORDS = b"Files of stepscope on their way. Removed once the processes that hold a lock on this file are gone.\n"
# the open markers of this process's folders: a lock lasts as long as its file is open
_held: dict[str, int] = {}


def make_scratch(given: str | None) -> Path:
    """Return a new folder for files on their way, below `given` or the temporary folder; sweep those left behind."""
    parent = Path(given or tempfile.gettempdir())
    with contextlib.suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
        sweep_scratch(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        _mark(folder)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    return folder


def hold_scratch(folder: Path) -> None:
    """Be an owner of this folder too, until it is removed or this process ends."""
    marker = None if str(folder) in _held else _open_marker(folder)
    if marker is not None:
        _lock(marker, exclusive=False)
        _held[str(folder)] = marker


def remove_scratch(folder: Path) -> None:
    """Remove the folder, if it is one of ours; others that still own it do without."""
    marker = _open_marker(folder)
    if marker is not None:
        os.close(marker)
        shutil.rmtree(folder, ignore_errors=True)
    held = _held.pop(str(folder), None)
    if held is not None:
        os.close(held)


def sweep_scratch(parent: Path) -> list[str]:
    """Return the names of the folders removed from `parent`: ours, and with no owner that lives."""
    removed = []
    for folder in parent.glob(f"{_PREFIX}*"):
        marker = _open_marker(folder)
        if marker is None:
            continue
        try:
            if _lock(marker, exclusive=True):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder.name)
        finally:
            os.close(marker)
    return removed


def _mark(folder: Path) -> None:
    unnamed = folder / f"{MARKER}.new"
    marker = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(marker, _WORDS)
        _lock(marker, exclusive=False)
        unnamed.rename(folder / MARKER)
    except OSError:
        os.close(marker)
        with contextlib.suppress(OSError):
            unnamed.unlink()
        raise
    _held[str(folder)] = marker


def _open_marker(folder: Path) -> int | None:
    try:
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return None
        marker = os.open(folder / MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, AttributeError):  # no such marker; or a system without owners
        return None
    about = os.fstat(marker)
    if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and os.read(marker, len(_WORDS)) == _WORDS:
        return marker
    os.close(marker)
    return None


def _lock(marker: int, *, exclusive: bool) -> bool:
    try:
        fcntl.flock(marker, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except (OSError, AttributeError):  # taken; or there are no locks here
        return False
    return True


def _let_go_in_child() -> None:
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.popitem()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
