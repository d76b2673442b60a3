"""Which thread is which: one of autograd's, which works for the training thread, or one that waits for others."""

import sys
import threading
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_WAITS = frozenset(("join", "_wait_for_tstate_lock", "wait", "wait_for"))


def is_of_autograd(thread: int) -> bool:
    """Return whether Python did not start this thread: autograd's device threads run a backward's hooks."""
    known = threading._active.get(thread)  # type: ignore[attr-defined]
    return known is None or isinstance(known, threading._DummyThread)


def is_over(thread: int | None) -> bool:
    """Return whether a thread has ended."""
    return thread not in threading._active  # type: ignore[attr-defined]


def is_waiting(thread: int | None) -> bool:
    """Return whether a thread waits for others: its innermost call is one of Python's own waits, and not for us."""
    frame = sys._current_frames().get(thread or 0)
    if frame is None or frame.f_code.co_name not in _WAITS or frame.f_code.co_filename != threading.__file__:
        return False
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            return False
        frame = frame.f_back
    return True
