"""Cache files: name and key of each; trusted files alone are loaded; large ones are written on another thread.

A cache file is loaded only if no other user can have written or changed it, and written for its owner alone. Trusted
owners are the current user and root. Anyone else's file or folder is refused, as is one that its group or others can
write to; a sticky folder such as /tmp is fine, because there only the owner of a file can replace it. Systems without
numeric users (Windows) check nothing. Standard library only: a cached report needs nothing heavy.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from stepscope.contract.run_folder import CACHE_FOLDER, atomic_write
from stepscope.side_file import MAX_BYTES, RefusedFile, open_side_file
from stepscope.units import Digest, digest_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

# Smaller traces are parsed faster than a cache is worth.
MIN_RAW_BYTES = 32 << 20


def cache_file(path: Path, cache_folder: Path | None = None, *, ending: str = "columns") -> Path:
    """Return the path of a trace's cache. In a given folder, traces of equal name differ by a hash of their path."""
    if cache_folder is None:
        return path.parent / CACHE_FOLDER / f"{path.name}.{ending}"
    where = digest_of(str(path.absolute()).encode(errors="surrogateescape"), 12)
    return cache_folder / f"{path.name}.{where}.{ending}"


# Key of a file: size, times and sampled content.
#
# Only the clock can set back the inode's time of change; the content also distinguishes copies.

_SAMPLE_BYTES = 1 << 14
_NUM_SAMPLES = 32


def content_key(path: Path) -> dict[str, Any] | None:
    """Return size, times and sampled content of a file, None where it cannot be read."""
    try:
        with open_side_file(path, max_bytes=1 << 42) as f:
            status = os.fstat(f.fileno())
            content = _sampled(f, status.st_size)
    except OSError:
        return None
    return _size_and_times(status) | {"content": content}


def is_unchanged(path: Path, key: dict[str, Any]) -> bool:
    """Return whether a file still has the size and times of its key."""
    try:
        now = _size_and_times(path.stat())
    except OSError:
        return False
    return all(key[name] == value for name, value in now.items())


def _size_and_times(status: os.stat_result) -> dict[str, Any]:
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}


def _sampled(f: IO[bytes], size: int) -> str:
    digest = Digest()
    last = max(size - _SAMPLE_BYTES, 0)
    for at in sorted({last * i // (_NUM_SAMPLES - 1) for i in range(_NUM_SAMPLES)}):
        f.seek(at)
        digest.add(f.read(_SAMPLE_BYTES))
    return digest.text()


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


# Caches that are written while the analysis goes on: by one thread, in the order of the requests.
#
# Writing needs neither the interpreter nor anything that the analysis changes. It begins when the ranks have been
# accounted for, until then all cores are busy. For commands alone, which wait for it before they end: whoever calls us
# from a program may remove the folder at once.

_lock = Lock()
_pool: "ThreadPoolExecutor | None" = None
_asked: dict[Path, Callable[[], None]] = {}
_begun: dict[Path, "Future[None]"] = {}


def write_later(target: Path, write: Callable[[], None]) -> None:
    """Keep what makes a file until `begin`."""
    with _lock:
        _asked[target] = write


def begin() -> None:
    """Write all requested files on another thread."""
    global _pool
    with _lock:
        if _asked:
            from concurrent.futures import ThreadPoolExecutor  # imports logging: not for commands that write nothing

            _pool = _pool or ThreadPoolExecutor(1)
            _begun.update({target: _pool.submit(write) for target, write in _asked.items()})
            _asked.clear()


def wait_for(target: Path) -> None:
    """Return once a file is made, where it was to be made later; what went wrong with that is raised."""
    if target in _asked:
        begin()
    with _lock:
        writing = _begun.pop(target, None)
    if writing is not None:
        writing.result()


def wait_for_all() -> None:
    """Return once all files are made."""
    begin()
    for target in list(_begun):
        wait_for(target)
