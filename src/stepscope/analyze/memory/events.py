"""Which blocks of memory were allocated and freed while the profiler watched, and what did that leave at each moment?

Every event says how many bytes at which address, negative for a free, and the allocator's totals after it. An
allocation and the next free at its address are one block. Blocks can begin before the window and end after it.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, of_kinds
from stepscope.trace.table import Int64s

NOT_HERE = -1
_HOST = 0


@dataclass(frozen=True, eq=False, repr=False)
class MemoryEvents(ArrayRecord):
    """Allocations and frees on one device of one rank, by time."""

    row: Int64s
    """in the event table"""
    time_ns: Int64s
    thread: Int64s
    change_bytes: Int64s
    address: Int64s | None
    """None where it was not recorded: then blocks cannot be told"""
    allocated_bytes: Int64s
    """after the event"""
    reserved_bytes: Int64s | None
    """after the event; None where it was not recorded"""
    before_bytes: int | None
    """allocated before the first event; None where the totals were not recorded and `allocated_bytes` is relative.
    Of the host it is what the profiler itself saw allocated: it counts from its own start, and nothing from before"""
    device: int
    """device ordinal, -1 for the host"""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def on_host(self) -> bool:
        """Return whether these are of the host's memory, whose totals leave out what was there before the profiler."""
        return self.device < 0

    def on_top_of(self, size_bytes: int) -> "MemoryEvents":
        """Return the events with so much more there from before the first of them."""
        if self.before_bytes is None or not size_bytes:
            return self
        allocated = self.allocated_bytes + size_bytes
        return replace(self, allocated_bytes=allocated, before_bytes=self.before_bytes + size_bytes)


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(ArrayRecord):
    """One row per block that an event belongs to."""

    size_bytes: Int64s
    born: Int64s
    """event that allocated it, NOT_HERE for before the window"""
    died: Int64s
    """event that freed it, NOT_HERE for not within the window"""

    def __len__(self) -> int:
        return len(self.size_bytes)

    def alive(self, event: int) -> npt.NDArray[np.bool_]:
        """Return which blocks exist right after an event."""
        return (self.born <= event) & ((self.died == NOT_HERE) | (self.died > event))


def memory_events(rank: Rank) -> MemoryEvents | None:
    """Return the events of the device that has most of them (of the host where no device has any), None without any."""
    trace = rank.trace
    rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.MEMORY,)))
    rows = rows[trace.arg("alloc_bytes").at(rows, missing=0) != 0]
    if not len(rows):
        return None
    kind = trace.arg("alloc_device_type").at(rows, missing=_HOST)
    ordinal = np.where(kind == _HOST, -1, trace.arg("alloc_device").at(rows, missing=0))
    devices, events = np.unique(ordinal[ordinal >= 0], return_counts=True)
    device = int(devices[events.argmax()]) if len(devices) else -1
    rows = rows[ordinal == device]
    number = trace.arg("ev_idx").at(rows, missing=0)  # tells the order of events of one moment
    return _events(rank, rows[np.lexsort((number, trace["ts_ns"][rows]))], device)


def blocks_of(events: MemoryEvents) -> Blocks | None:
    """Return the blocks, each allocation joined to the next free at its address; None without addresses."""
    if events.address is None:
        return None
    order = np.lexsort((np.arange(len(events)), events.address))
    address, change = events.address[order], events.change_bytes[order]
    same = np.append(address[1:] == address[:-1], False)
    births = change > 0
    joined = births & same & np.append(change[1:] < 0, False)
    after_birth = np.concatenate(([False], joined[:-1]))
    orphans = ~births & ~after_birth
    born = np.concatenate((order[births], np.full(int(orphans.sum()), NOT_HERE)))
    death = np.where(joined, np.append(order[1:], NOT_HERE), NOT_HERE)
    died = np.concatenate((death[births], order[orphans]))
    return Blocks(np.abs(np.concatenate((change[births], change[orphans]))), born, died)


def _events(rank: Rank, rows: npt.NDArray[np.intp], device: int) -> MemoryEvents:
    trace = rank.trace
    change = trace.arg("alloc_bytes").at(rows, missing=0)
    total, reserved = (trace.arg(name).at(rows, missing=-1) for name in ("total_allocated", "total_reserved"))
    address = trace.arg("alloc_addr").at(rows, missing=0)
    known = bool((total >= 0).all())
    running = np.cumsum(change)
    return MemoryEvents(
        row=rows,
        time_ns=trace["ts_ns"][rows],
        thread=trace["tid"][rows],
        change_bytes=change,
        address=address if address.all() else None,
        allocated_bytes=total if known else running - min(int(running.min()), 0),
        reserved_bytes=reserved if device >= 0 and bool((reserved >= 0).all()) else None,
        before_bytes=int(total[0] - change[0]) if known else None,
        device=device,
    )
