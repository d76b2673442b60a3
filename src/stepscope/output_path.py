"""Checks of output paths, for both sides.

An output is a regular file or new. A device, a pipe, a socket, a folder or a link is never written to and never
replaced, whatever the user allows to be overwritten; and the way to it leads through no link that belongs to somebody
else, which could lead anywhere by the time it is followed. Standard library only: the job side imports it.
"""

import errno
import io
import os
import stat
from pathlib import Path

from stepscope.units import printable

_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# permissions of recorded files: they hold command lines and source code
PRIVATE = 0o600
# the same as Linux's own limit
_MAX_LINKS = 40


class OutputRefusedError(OSError):
    """A place that must not be written to; `strerror` says why."""


def refuse_output(path: str | os.PathLike[str]) -> None:
    """Raise an `OutputRefusedError` unless `path` is a regular file or new, in a folder that may be trusted."""
    why_not = why_no_output(path)
    if why_not is not None:
        raise OutputRefusedError(errno.EINVAL, why_not, os.fspath(path))


def opened_to_grow(path: str | os.PathLike[str]) -> io.FileIO:
    """Return an empty file that is written to while others read it; an `OSError` where none may be written there.

    What takes the place of the file meanwhile is not followed, not waited for, and not written to.
    """
    refuse_output(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OutputRefusedError(errno.EINVAL, "it is no regular file", os.fspath(path))
    os.ftruncate(file, 0)
    return io.FileIO(file, "wb")


def open_private(path: str | os.PathLike[str], flags: int = os.O_TRUNC) -> int:
    """Return a file opened for writing; a new one can be read by its owner alone, whatever the umask."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, PRIVATE)


def why_no_output(path: str | os.PathLike[str]) -> str | None:
    """Return why no file may be written at `path`, None where one may; an OSError where that cannot be told."""
    return why_no_file(path) or why_no_folder(Path(path).absolute().parent)


def why_no_file(path: str | os.PathLike[str]) -> str | None:
    """Return what lies at `path` that is no regular file, None for a regular file or nothing."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(mode):
        return None
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    return f"it is {kind}, not a regular file"


def why_no_folder(path: str | os.PathLike[str]) -> str | None:
    """Return which link of another owner the way to a folder leads through, None where there is none.

    Links of the user and of root are followed as usual: a home on another disk, macOS's own /tmp.
    """
    trusted = {0, os.geteuid()} if hasattr(os, "geteuid") else None
    left = list(reversed(Path(path).absolute().parts))
    place, links = Path(left.pop()), 0
    while left and trusted is not None:
        name = left.pop()
        if name == "..":
            place = place.parent  # of a place without links, so this is where it leads
            continue
        try:
            found = os.lstat(place / name)
        except (FileNotFoundError, NotADirectoryError):
            return None  # what is not there yet is ours to make
        if not stat.S_ISLNK(found.st_mode):
            place = place / name
            continue
        links += 1
        if found.st_uid not in trusted:
            return f"{printable(str(place / name))} is a link that belongs to another user"
        if links > _MAX_LINKS:
            return f"{printable(str(path))} leads through too many links"
        target = Path(os.readlink(place / name))  # noqa: PTH115 - the text as it stands, not resolved
        place = Path(target.anchor) if target.is_absolute() else place
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return None
