"""What becomes of memory that was freed: returned to the system, or kept for the next array?

Reading a trace leaves tens of megabytes that were freed and that the system still counts as used. In a process that is
somebody else's they go back. In one of our own the analyses use them: to take each array of megabytes from the system,
which clears it, costs as much as filling it.
"""

import ctypes
from contextlib import suppress

WORTH_RETURNING_BYTES = 32 << 20
"""of raw text"""
_KEPT_BYTES = 64 << 20
_MAX_IN_HEAP_BYTES = 32 << 20
"""the most that glibc takes"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""of `mallopt` in glibc's malloc.h"""

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
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        _is_kept = True


def return_freed(raw_bytes: int) -> None:
    """Return to the system what reading so many bytes left behind, unless it is kept. Only glibc can."""
    if raw_bytes >= WORTH_RETURNING_BYTES and not _is_kept:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
