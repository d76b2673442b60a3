"""Writing to storage that fails for a while: what may pass is tried again, and every failure is counted.

A disk that is full has room again once somebody cleans up, a quota is raised, a file server comes back. The helper
process has time: while training runs nothing waits for it. Standard library only.
"""

import errno
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from stepscope.record.whole_file import FULL

_PASSING = FULL | {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT}
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 2.0
_Done = TypeVar("_Done")


def may_pass(error: BaseException | None) -> bool:
    """Return whether the same write may succeed later."""
    return isinstance(error, OSError) and error.errno in _PASSING


class Retries:
    """How long this process goes on trying, and what came of it. Used by several threads."""

    def __init__(self, while_running_s: float, *, on_failure: Callable[[OSError], None] = lambda _: None) -> None:
        self.failed_writes = 0
        self.lost_lines = 0
        self.lost_files: list[str] = []
        self._reason: str | None = None
        self._while_running_s = while_running_s
        self._ends_at: float | None = None
        self._ending = threading.Event()
        self._on_failure = on_failure

    def end_within(self, seconds: float) -> None:
        """Training is over: from now on everything together has so many seconds."""
        self._ends_at = time.monotonic() + seconds
        self._ending.set()

    def note_failure(self, error: OSError) -> None:
        """Count a write that failed."""
        self.failed_writes += 1
        self._reason = error.strerror or str(error)
        self._on_failure(error)

    def until_done(self, act: Callable[[], _Done], *, within_s: float | None = None) -> _Done:
        """Return `act()`, tried again where its failure may pass; the last failure is raised."""
        began, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                return act()
            except OSError as e:
                self.note_failure(e)
                if not may_pass(e) or time.monotonic() + pause_s > self._latest(began, within_s):
                    raise
            if self._ending.is_set():
                time.sleep(pause_s)
            else:
                self._ending.wait(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def summary(self) -> dict[str, Any] | None:
        """Return what was not written at once or at all, None where all was."""
        if not self.failed_writes:
            return None
        return {
            "failed_writes": self.failed_writes,
            "lost_lines": self.lost_lines,
            "lost_files": self.lost_files,
            "reason": self._reason,
        }

    def _latest(self, began: float, within_s: float | None) -> float:
        if within_s is not None:
            return began + within_s
        return began + self._while_running_s if self._ends_at is None else self._ends_at
