"""How much memory a rank uses, at a named moment and step by step, on the device and on the host.

`memory_snapshot("after forward")` looks closely: it walks the allocator's blocks. `MemorySampler` follows the steps and
has to be cheap: counters of the allocator and one line of `/proc`, at most ten times a second, nothing that waits for
the device. The peaks are the allocator's own and are never reset, because the job may be reading them too.

Reserved minus allocated is *cache*: free memory that the allocator keeps in its segments. *Fragmentation* is the share
of that cache which no single request could use: 1 - largest free block / free memory.
"""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PEAK_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in kB except on macOS
_PERIOD_NS = 100_000_000  # a look costs 20 to 80 us with cold caches: below 0.1 % of the time


@dataclass(frozen=True)
class MemorySnapshot:
    """Memory of this process at one moment. Device numbers are None where CUDA is not in use."""

    label: str
    time_ns: int  # since the epoch
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    free_in_segments_bytes: int | None  # the cache: reserved, held by no tensor
    largest_free_block_bytes: int | None
    allocator_retries: int | None  # how often the cache had to be emptied to satisfy a request
    device_total_bytes: int | None
    host_bytes: int | None
    host_peak_bytes: int

    @property
    def fragmentation(self) -> float | None:
        """The share of the free memory in segments that no single request could use; None where nothing is free."""
        if not self.free_in_segments_bytes or self.largest_free_block_bytes is None:
            return None
        return 1 - self.largest_free_block_bytes / self.free_in_segments_bytes


def memory_snapshot(label: str, *, device: int | None = None) -> MemorySnapshot:
    """Return this process's memory now, under a name of your choice. Does not wait for the device.

    It walks the allocator's blocks (about a millisecond): for chosen moments, not for every operation.
    """
    stats = device_stats(device)
    free = _free_blocks(_segments(), _index(device)) if stats else []
    return MemorySnapshot(
        label=label,
        time_ns=time.time_ns(),
        allocated_bytes=_stat(stats, "allocated_bytes", "current"),
        reserved_bytes=_stat(stats, "reserved_bytes", "current"),
        peak_allocated_bytes=_stat(stats, "allocated_bytes", "peak"),
        peak_reserved_bytes=_stat(stats, "reserved_bytes", "peak"),
        free_in_segments_bytes=sum(free) if stats else None,
        largest_free_block_bytes=max(free, default=0) if stats else None,
        allocator_retries=stats.get("num_alloc_retries") if stats else None,
        device_total_bytes=torch.cuda.get_device_properties(_index(device)).total_memory if stats else None,
        host_bytes=host_bytes(),
        host_peak_bytes=host_peak_bytes(),
    )


def device_stats(device: int | None = None) -> dict[str, Any]:
    """Return the allocator's nested counters of a device; empty where this process has not started CUDA."""
    if not torch.cuda.is_initialized():
        return {}
    return dict(torch.cuda.memory_stats_as_nested_dict(device))


def host_bytes() -> int | None:
    """Return the resident memory of this process, None where the system does not say (no `/proc`)."""
    try:
        with open("/proc/self/statm", "rb") as f:  # noqa: PTH123 - shorter than a Path for one read
            return _resident(f.read())
    except OSError:
        return None


def host_peak_bytes() -> int:
    """Return the most resident memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT_BYTES


class MemorySampler:
    """Memory for lines of the step log: `{"memory": {...}}`, bytes throughout.

    Steps shorter than the period share a look: those in between say nothing rather than something old.
    """

    def __init__(self, *, period_ns: int = _PERIOD_NS) -> None:
        self._period_ns = period_ns
        self._next_ns = 0
        self._statm = _open_statm()

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Return what this step's line shall say about memory."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return {}
        self._next_ns = now_ns + self._period_ns
        seen: dict[str, int | None] = {"host_bytes": self._host(), "host_peak_bytes": host_peak_bytes()}
        if torch.cuda.is_initialized():
            seen.update(_device())
        return {"memory": seen}

    def on_close(self, folder: Any, rank: int) -> None:
        """Let go of the file that is read every time."""
        if self._statm is not None:
            with contextlib.suppress(OSError):
                os.close(self._statm)
            self._statm = None

    def _host(self) -> int | None:
        if self._statm is None:
            return None
        return _resident(os.pread(self._statm, 128, 0))


def _device() -> dict[str, int | None]:
    stats = device_stats()
    return {
        "allocated_bytes": _stat(stats, "allocated_bytes", "current"),
        "reserved_bytes": _stat(stats, "reserved_bytes", "current"),
        "peak_allocated_bytes": _stat(stats, "allocated_bytes", "peak"),
        "peak_reserved_bytes": _stat(stats, "reserved_bytes", "peak"),
        "allocator_retries": stats.get("num_alloc_retries"),
    }


def _segments() -> list[dict[str, Any]]:
    """Return the allocator's segments without its history, which would make each snapshot slower than the last."""
    try:
        return list(torch.cuda.memory_snapshot(include_traces=False))
    except TypeError:  # before torch 2.10
        return list(torch.cuda.memory_snapshot())


def _free_blocks(segments: Iterable[Mapping[str, Any]], device: int) -> list[int]:
    """Return the sizes of the blocks that no tensor holds, in the segments of one device."""
    return [
        block["size"]
        for segment in segments
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]


def _index(device: int | None) -> int:
    return torch.cuda.current_device() if device is None else device


def _stat(stats: Mapping[str, Any], name: str, when: str) -> int | None:
    found = stats.get(name)
    return None if found is None else int(found["all"][when])


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _resident(statm: bytes) -> int:
    return int(statm.split()[1]) * _PAGE_BYTES
