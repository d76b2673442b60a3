"""The file behind a path that somebody asked for: the one door to every file that is served.

What counts is where a path ends up, not what it looks like: the file is resolved, and served only if it lies inside
its root, is a plain file, and no part of the way to it is a link.
"""

import os
import stat
from pathlib import Path

MAX_PATH = 1024
MAX_SERVED_BYTES = 1 << 28


def served_bytes(root: Path, asked: str) -> bytes | None:
    """Return the content of the plain file at a decoded path below `root`, None for anything else."""
    file = served_file(root, asked)
    if file is None:
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as f:
        found = os.fstat(descriptor)
        return f.read() if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_SERVED_BYTES else None


def served_file(root: Path, asked: str) -> Path | None:
    """Return the plain file at a decoded path below `root`, None for anything else."""
    names = asked.split("/")
    if len(asked) > MAX_PATH or not all(map(_is_plain, names)):
        return None
    try:
        whole = root.resolve(strict=True)
        place = whole.joinpath(*names)
        # Without links, the place itself is where it leads; with any, or with a name that means more, it is not.
        if place.resolve(strict=True) != place or not place.is_relative_to(whole) or place == whole:
            return None
        return place if stat.S_ISREG(place.lstat().st_mode) else None
    except (OSError, ValueError, RuntimeError):
        return None


def _is_plain(name: str) -> bool:
    """Return whether this is the name of one thing in a folder, on every system."""
    return bool(name) and name not in (".", "..") and name.isprintable() and not set(name) & set("/\\:")
