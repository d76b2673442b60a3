"""Cache files: loaded only if no other user can have written or changed them, and written for their owner alone.

Trusted owners are the current user and root. Anyone else's file or folder is refused, as is one that its group or
others can write to; a sticky folder such as /tmp is fine, because there only the owner of a file can replace it.
Systems without numeric users (Windows) check nothing. Standard library only.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stepscope.contract.run_folder import CACHE_FOLDER, atomic_write
from stepscope.side_file import MAX_BYTES, RefusedFile, open_side_file


@contextmanager
def open_trusted_file(path: Path, *, max_bytes: int = MAX_BYTES) -> Iterator[IO[bytes]]:
    """Open a cache file; a `RefusedFile` if another user may have written or changed it."""
    with open_side_file(path, max_bytes=max_bytes) as f:
        for status in (os.fstat(f.fileno()), path.parent.stat()):
            if not _is_trusted(status):
                raise RefusedFile(errno.EPERM, "another user may have changed it", str(path))
        yield f


def is_trusted_file(path: Path) -> bool:
    """Return whether a cache file may be loaded by a library that opens it by its name."""
    try:
        with open_trusted_file(path, max_bytes=1 << 42):
            return True
    except OSError:
        return False


def write_trusted_file(target: Path, parts: Iterable[bytes | memoryview], *, permissions: int = 0o600) -> None:
    """Write a cache file; none if its folder cannot be written to or is not private."""
    try:
        if make_trusted_folder(target.parent, permissions=permissions):
            # Not synced: what a crash leaves of a cache fails its checks.
            with atomic_write(target, synced=False, permissions=permissions) as f:
                f.writelines(parts)
    except OSError:
        return


def make_trusted_folder(folder: Path, *, permissions: int = 0o600) -> bool:
    """Create a folder for such files if needed; return whether only trusted users can write to it."""
    above = next((parent for parent in folder.absolute().parents if parent.is_dir()), folder)
    if not above.stat().st_mode & 0o222:  # root's writes would ignore it
        return False
    folder.mkdir(mode=permissions | (permissions & 0o444) >> 2, parents=True, exist_ok=True)
    if folder.name == CACHE_FOLDER:
        if folder.is_symlink():
            return False
        _take_back(folder)
    return folder.is_dir() and _is_trusted(folder.stat())


def _take_back(folder: Path) -> None:
    status = folder.stat()
    if hasattr(os, "geteuid") and status.st_uid == os.geteuid() and status.st_mode & 0o022:
        folder.chmod(0o700)


def _is_trusted(status: os.stat_result) -> bool:
    if not hasattr(os, "geteuid"):
        return True
    others_write = status.st_mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX)
    return status.st_uid in (0, os.geteuid()) and not others_write
