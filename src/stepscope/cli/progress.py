"""A progress bar on standard error for what takes more than a second; nothing where nobody watches."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stepscope.cli.say import draw
from stepscope.run.load import Progress

_SHOW_AFTER_S = 1.0


@contextmanager
def reading_progress() -> Iterator[Progress | None]:
    """Yield a callback for `load`, or None where standard error is no terminal."""
    with work_progress("reading") as progress:
        yield progress


@contextmanager
def work_progress(what: str) -> Iterator[Progress | None]:
    """Yield a callback that takes how much is done of how much, or None where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    """Appears once the work has taken longer than a second, and removes itself."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self._lock = threading.Lock()

    def update(self, done: int, total: int) -> None:
        """Draw the bar, at most ten times a second."""
        now = time.monotonic()
        with self._lock:
            if now - self._started_s < _SHOW_AFTER_S or now - self._drawn_s < 0.1:
                return
            self._drawn_s = now
            share = min(done / total, 1.0) if total else 0.0
            filled = round(30 * share)
            text = f"\r{self._what} [{'#' * filled}{'.' * (30 - filled)}] {100 * share:3.0f} %"
            draw(text)

    def close(self) -> None:
        """Wipe the bar."""
        if self._drawn_s:
            draw("\r" + " " * 60 + "\r")
