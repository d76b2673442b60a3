"""A trace that arrived whole: the plain export is verified, compressed and moved into the run folder in one move.

The export returns normally on a full disk or a missing folder, so nothing is believed before its head and tail have
been read back. Temporary files carry their host and process in the name, so that the next run can tell those that
a killed writer left behind; and a writer that lives holds a lock on its own, because a process of another container
may have a name and a number that mean nothing here.
"""

import contextlib
import gzip
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from stepscope.side_file import open_private

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]

_TAIL_BYTES = 256
_TEMPORARY = re.compile(r"^\..+\.(?P<host>[^.]*)-(?P<pid>\d+)\.tmp$")


def trouble_with_export(plain: Path) -> str | None:
    """Return what is wrong with a plain trace file, or None for one that was written to its end."""
    try:
        size_bytes = plain.stat().st_size
        with plain.open("rb") as f:
            head = f.read(_TAIL_BYTES).lstrip()
            f.seek(max(0, size_bytes - _TAIL_BYTES))
            tail = f.read().rstrip()
    except FileNotFoundError:
        return "the profiler reported success but wrote no file"
    except OSError as e:
        return f"the exported file cannot be read back: {e.strerror}"
    if not head.startswith(b"{"):
        return f"the exported file ({size_bytes} bytes) does not begin like a trace; is the disk full?"
    if not tail.endswith(b"}"):
        return f"the exported file ({size_bytes} bytes) breaks off; is the disk full?"
    return None


def compress_into(plain: Path, target: Path) -> int:
    """Return the size in bytes of `target`, the compressed `plain`; on failure nothing is left of it."""
    with plain.open("rb") as source, _place_whole(target) as raw:
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=5, mtime=0) as packed:
            shutil.copyfileobj(source, packed, (1 << 20))
        return raw.tell()


def place_whole(text: bytes, target: Path) -> None:
    """Write `text` to `target` in one move; the old file or the new one is there, never half."""
    with _place_whole(target) as f:
        f.write(text)


@contextlib.contextmanager
def _place_whole(target: Path) -> Iterator[IO[bytes]]:
    temporary = temporary_for(target)
    try:
        with os.fdopen(open_private(temporary), "wb") as f:
            _lock(f)
            yield f
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def temporary_for(target: Path) -> Path:
    """Return the hidden name under which `target` is written until it is whole."""
    return target.with_name(f".{target.name}.{_host()}-{os.getpid()}.tmp")


def sweep(folder: Path) -> list[str]:
    """Remove the temporary files in `folder` whose writer on this host has exited, and return their names."""
    removed = []
    try:
        names = [p.name for p in folder.iterdir()]
    except OSError:
        return []
    for name in names:
        found = _TEMPORARY.match(name)
        if found and found["host"] == _host() and not is_alive(int(found["pid"])):
            with contextlib.suppress(OSError), (folder / name).open("rb+") as f:
                if _lock(f):
                    (folder / name).unlink()
                    removed.append(name)
    return removed


def _lock(f: IO[bytes]) -> bool:
    try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return True
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process of that number exists on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's; or no number that a process can have
        return True
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", os.uname().nodename)
