"""Caches that are written while the analysis goes on: by one thread, in the order of the requests.

Writing needs neither the interpreter nor anything that the analysis changes. It begins when the ranks have been
accounted for, until then all cores are busy. For commands alone, which wait for it before they end: whoever calls us
from a program may remove the folder at once.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

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
