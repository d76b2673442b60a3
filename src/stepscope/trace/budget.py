"""Memory limit for the tables of some input, derived from the input's size on disk.

Tables of 25 real traces, ours and of other projects, on NVIDIA, AMD and MTIA, took 4.0 to 6.3 times their gzipped size.
Input that asks for three times as much is not what a profiler wrote: a few kilobytes can unpack to gigabytes of empty
events.
"""

import ctypes
from contextlib import suppress
from threading import Lock

from stepscope.errors import InputError

# of a distinct string: in the scanner, as bytes, as text, and in the table of strings
BYTES_PER_TEXT = 300
# bytes in memory of a byte of JSON at worst, a list of small objects
JSON_FACTOR = 32


class OverBudget(InputError):
    """Input whose tables would take more memory than its size accounts for."""


class Budget:
    """The memory that the tables of one input may take together; shared by all threads that read it."""

    def __init__(self, input_bytes: int) -> None:
        self.limit_bytes = max(256 << 20, 20 * input_bytes)
        self._used_bytes = 0
        self._lock = Lock()

    def share(self) -> "Share":
        return Share(self)

    def _take(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes += size_bytes
            over = self._used_bytes > self.limit_bytes
        if over:
            raise OverBudget(
                f"needs more memory than its size accounts for ({self.limit_bytes >> 20} MB for all files together); "
                "it multiplies when it is read, as traces of a profiler do not; record fewer steps if it is one"
            )


class Share:
    """What one file took; given back where the file turns out to be none."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        self._taken_bytes += size_bytes
        self._budget._take(size_bytes)

    def give_back(self) -> None:
        with self._budget._lock:
            self._budget._used_bytes -= self._taken_bytes
        self._taken_bytes = 0


# Freed memory: reading a trace leaves tens of megabytes. In another program's process they are returned to the system;
# in a command the analyses reuse them, because clearing new pages costs as much as filling them.

# of raw text
_WORTH_RETURNING_BYTES = 32 << 20
# the most that glibc takes
_MAX_IN_HEAP_BYTES = 32 << 20
# of `mallopt` in glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_is_kept = False


def keep_freed() -> None:
    """Let arrays use the memory of those before them, whichever thread had them: from now on, in all of this process.

    For commands alone. Only glibc can.
    """
    global _is_kept
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, _MAX_IN_HEAP_BYTES)
        library.mallopt(_TRIM_THRESHOLD, 64 << 20)
        _is_kept = True


def return_freed(raw_bytes: int) -> None:
    """Return to the system what reading so many bytes left behind, unless it is kept. Only glibc can."""
    if raw_bytes >= _WORTH_RETURNING_BYTES and not _is_kept:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
