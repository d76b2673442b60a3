"""Which blocks did the allocator hand out, how large were they, and when were they given back?

The history has the sizes that were asked for; what counts is the size of the block: rounded up to 512 bytes, and larger
where the rest of a free block was too small to be split off. So the history is replayed with the allocator's own rules
(c10/cuda/CUDACachingAllocator.cpp: `round_size`, `should_split`, merging of free neighbours). At the end the replay
has to hold the very blocks that the snapshot lists; `differs_bytes` says by how much it does not.
"""

from bisect import bisect_right, insort

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.pickles.memory_snapshot import (
    ALLOC,
    FREE,
    FREED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    MemorySnapshot,
)
from stepscope.trace.table import Int64s

MIN_BLOCK = 512
SMALL = 1 << 20
NOT_HERE = -1


@dataclass(frozen=True, eq=False, repr=False)
class History(ArrayRecord):
    """Every block of the history, and the totals after each event."""

    size_bytes: Int64s
    """of each block, as the allocator counts it"""
    born: Int64s
    """event that allocated it, NOT_HERE for before the history"""
    died: Int64s
    """event that gave it back, NOT_HERE for not within the history"""
    stack: Int64s
    """of its allocation, -1 where unknown"""
    address: Int64s
    allocated_bytes: Int64s
    """after each event"""
    reserved_bytes: Int64s | None
    """None where the history does not fit the segments at its end"""
    before_bytes: int
    """allocated before the first event"""
    differs_bytes: int
    """by which the replay and the snapshot differ at the end"""

    def alive(self, event: int) -> np.ndarray:
        """Return which blocks exist right after an event; -1 is before the first."""
        return (self.born <= event) & ((self.died == NOT_HERE) | (self.died > event))


class _Space:
    """Free blocks by address, with where the memory around them ends."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.size: dict[int, int] = {}
        self.edges: list[int] = []  # where segments begin and end: nothing merges across

    def add_edge(self, address: int) -> None:
        at = bisect_right(self.edges, address)
        if not at or self.edges[at - 1] != address:
            insort(self.edges, address)

    def give(self, address: int, size: int) -> None:
        """Add a free block, merged with its free neighbours; none where a damaged history frees what is free."""
        at = bisect_right(self.starts, address)
        if size <= 0 or (at and self._end(at - 1) > address):
            return
        if at < len(self.starts) and self.starts[at] < address + size:
            return
        if at and self._end(at - 1) == address and not self._is_edge(address):
            before = self.starts.pop(at - 1)
            address, size, at = before, self.size.pop(before) + size, at - 1
        if at < len(self.starts) and self.starts[at] == address + size and not self._is_edge(address + size):
            size += self.size.pop(self.starts.pop(at))
        insort(self.starts, address)
        self.size[address] = size

    def take(self, address: int, wanted: int, *, expandable: bool) -> int:
        """Return the size of the block that an allocation at an address gets; the rest stays free."""
        at = bisect_right(self.starts, address) - 1
        if at < 0 or self._end(at) <= address:
            return wanted  # from a segment that the history does not show
        start = self.starts.pop(at)
        end = start + self.size.pop(start)
        if start < address:
            insort(self.starts, start)
            self.size[start] = address - start
        rest = end - address - wanted
        split = rest >= MIN_BLOCK if wanted <= SMALL or expandable else rest > SMALL
        size = wanted if split and rest > 0 else end - address
        if address + size < end:
            insort(self.starts, address + size)
            self.size[address + size] = end - address - size
        return size

    def remove(self, address: int, size: int) -> None:
        """Take free memory out: it went back to the device."""
        at = bisect_right(self.starts, address) - 1
        if at < 0 or self._end(at) <= address:
            return
        start = self.starts.pop(at)
        end = start + self.size.pop(start)
        for a, b in ((start, address), (address + size, end)):
            if a < b:
                insort(self.starts, a)
                self.size[a] = b - a

    def _end(self, at: int) -> int:
        return self.starts[at] + self.size[self.starts[at]]

    def _is_edge(self, address: int) -> bool:
        at = bisect_right(self.edges, address)
        return bool(at) and self.edges[at - 1] == address


def rounded(asked_bytes: int) -> int:
    """Return the size that the allocator looks for: whole multiples of 512 bytes."""
    return max(MIN_BLOCK, -(-asked_bytes // MIN_BLOCK) * MIN_BLOCK)


def history_of(snapshot: MemorySnapshot) -> History:
    """Return the blocks and totals of a snapshot's history."""
    older = _blocks_from_before(snapshot)
    space = _space_before(snapshot, older)
    size: list[int] = []
    born: list[int] = []
    died: list[int] = []
    stack: list[int] = []
    address: list[int] = []
    live: dict[int, int] = {}

    def begin(at: int, length: int, event: int, of_stack: int) -> None:
        live[at] = len(size)
        for column, value in ((size, length), (born, event), (died, NOT_HERE), (stack, of_stack), (address, at)):
            column.append(value)

    for at, (length, of_stack) in sorted(older.items()):
        begin(at, length, NOT_HERE, of_stack)
    before_bytes = sum(size)
    change = np.zeros(len(snapshot.action), np.int64)
    reserved = np.zeros(len(snapshot.action), np.int64)
    waiting: dict[int, int] = {}
    rows = zip(snapshot.action, snapshot.address, snapshot.size_bytes, snapshot.stack, strict=True)
    for event, (action, at, asked, of_stack) in enumerate(rows):
        if action == ALLOC:
            length = space.take(at, rounded(asked), expandable=snapshot.expandable)
            if at in live:  # a damaged history: what was there is gone
                died[live[at]] = event
                change[event] -= size[live[at]]
            begin(at, length, event, of_stack)
            change[event] += length
        elif action == FREE and at in live:
            block = live.pop(at)
            died[block] = event
            change[event] = -size[block]
            waiting[at] = size[block]
        elif action == FREED:
            space.give(at, waiting.pop(at, rounded(asked)))
        elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
            if action == SEGMENT_ALLOC:
                space.add_edge(at)
                space.add_edge(at + asked)
            space.give(at, asked)
            reserved[event] = asked
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            space.remove(at, asked)
            reserved[event] = -asked
    end = {b.address: b.size_bytes for s in snapshot.segments for b in s.blocks if b.allocated}
    replayed = {at: size[block] for at, block in live.items()}
    differs = sum(abs(end.get(at, 0) - replayed.get(at, 0)) for at in {*end, *replayed})
    allocated = before_bytes + np.cumsum(change)
    held = snapshot.reserved_bytes - int(reserved.sum()) + np.cumsum(reserved)
    return History(
        size_bytes=np.array(size, np.int64),
        born=np.array(born, np.int64),
        died=np.array(died, np.int64),
        stack=np.array(stack, np.int64),
        address=np.array(address, np.int64),
        allocated_bytes=allocated,
        reserved_bytes=held if (held >= allocated).all() else None,
        before_bytes=before_bytes,
        differs_bytes=differs,
    )


def _blocks_from_before(snapshot: MemorySnapshot) -> dict[int, tuple[int, int]]:
    """Return size and stack of the blocks that were there before the first event, by address.

    Those still there at the end are listed by the snapshot; of those freed in the history only what was asked for is
    known, so a rest that would not have been split off is taken as part of them.
    """
    first_action: dict[int, tuple[int, int]] = {}
    for action, at, asked in zip(snapshot.action, snapshot.address, snapshot.size_bytes, strict=True):
        if action in (ALLOC, FREE):
            first_action.setdefault(at, (action, asked))
    older = {
        b.address: (b.size_bytes, b.stack)
        for s in snapshot.segments
        for b in s.blocks
        if b.allocated and b.address not in first_action
    }
    freed = {at: rounded(asked) for at, (action, asked) in first_action.items() if action == FREE}
    edges = sorted({*older, *freed, *(s.address + s.size_bytes for s in snapshot.segments)})
    for at, wanted in freed.items():
        after = bisect_right(edges, at)
        rest = edges[after] - at - wanted if after < len(edges) else 0
        kept = 0 < rest < MIN_BLOCK if wanted <= SMALL or snapshot.expandable else 0 < rest <= SMALL
        older[at] = (wanted + rest if kept else wanted, -1)
    return older


def _space_before(snapshot: MemorySnapshot, older: dict[int, tuple[int, int]]) -> _Space:
    """Return what was free before the first event: segments from before, less the blocks in them."""
    space = _Space()
    new = {
        at
        for action, at in zip(snapshot.action, snapshot.address, strict=True)
        if action in (SEGMENT_ALLOC, SEGMENT_MAP)
    }
    starts = sorted(older)
    for segment in snapshot.segments:
        if segment.address in new:
            continue
        end = segment.address + segment.size_bytes
        space.add_edge(segment.address)
        space.add_edge(end)
        at = segment.address
        for start in starts[bisect_right(starts, segment.address - 1) : bisect_right(starts, end - 1)]:
            if start > at:
                space.give(at, start - at)
            at = max(at, start + older[start][0])
        if at < end:
            space.give(at, end - at)
    return space
