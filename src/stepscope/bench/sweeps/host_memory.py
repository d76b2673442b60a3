"""How much memory of the host does this process use, at most, and how to bound it? Linux; None elsewhere."""

import contextlib
import ctypes
import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")
# environment of a process whose growth is limited: torch for aarch64 allocates by mimalloc, which maps 1 GiB ahead
NOTHING_IN_RESERVE = {"MIMALLOC_ARENA_RESERVE": "0"}
# of one whose growth is measured again and again: it also keeps what was freed, so that the next grows by nothing
NOTHING_KEPT = {"MIMALLOC_PURGE_DELAY": "0"}


def reset_peak() -> int | None:
    """Return the bytes resident now, from where the peak is counted anew; what was freed goes back to the system."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):  # another system, another C library
        return None
    return _status_bytes("VmRSS")


def peak_bytes() -> int | None:
    """Return the most bytes resident since `reset_peak`."""
    return _status_bytes("VmHWM")


def limit_growth(size_bytes: int) -> None:
    """Let this process's data grow by so many bytes and no further; allocations beyond fail.

    What an allocator has mapped ahead is not counted again when it is used: see `NOTHING_IN_RESERVE`.
    """
    now = _status_bytes("VmData") or 0
    with contextlib.suppress(ValueError):  # the system's own limit is lower
        resource.setrlimit(resource.RLIMIT_DATA, (now + size_bytes, now + size_bytes))


def available_bytes() -> int | None:
    """Return what the system says can still be taken without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _status_bytes(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")]
    return found[0] if found else None
