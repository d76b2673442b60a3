"""Do something on a thread as it ends: torch's profiler belongs to the thread that started it.

A thread that ends with its profiler running takes the process down when that exits (SIGSEGV), and no other thread can
stop it. Threads of Python's `threading` call their own `_delete` last; any other thread gives no sign of its end.
"""

import os
import threading
from collections.abc import Callable

NO_SIGN = (
    "the steps run in a thread that Python's threading did not start: its end, and the profiler's, would be unseen"
)


def this_thread() -> tuple[int, int]:
    """Return the process and the thread: a forked child has the profiler of neither."""
    return os.getpid(), threading.get_ident()


def at_thread_end(act: Callable[[], None]) -> bool:
    """Return whether `act` will be called on this thread as it ends; the main thread's end is `atexit`'s."""
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return True
    last = getattr(thread, "_delete", None)
    if last is None or isinstance(thread, threading._DummyThread):
        return False

    def ended() -> None:
        try:
            act()
        finally:
            last()

    thread._delete = ended  # type: ignore[attr-defined]
    return True
