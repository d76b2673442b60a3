"""A stream of events parsed block by block, on one thread or several, with the same result.

What is packed takes as long to unpack as to parse, so one thread does either, and unpacks to where it is parsed. What
is not is cut into blocks where one event ends and the next begins, as far as the bytes tell, which are parsed ahead of
knowing whether that is right. A block's result counts only if the block before it ended exactly at the cut; otherwise
it is parsed again behind what the other left, so a separator inside a string costs time, not truth.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import field
from queue import SimpleQueue

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.assemble import Columns
from stepscope.trace.header import MAX_TAIL_BYTES
from stepscope.trace.scanner import Buffer, Counts, Flags, ParsedBlock, Rows
from stepscope.trace.scanner.scanner import Room, Scanner
from stepscope.trace.streams import Filler

BLOCK_BYTES = 3 << 20
_SEARCHED_BYTES = 1 << 16
_BETWEEN_EVENTS = re.compile(rb"\}\s{0,64},(\s{0,64}\{\s{0,64})\Z")
_MAX_TRIES = 64
_AHEAD = 1
"""blocks in flight beyond one per thread"""


@dataclass(eq=False, repr=False)
class Events(ArrayRecord):
    """What the events of a file gave so far, before the strings are joined."""

    top_array: bool
    offset: int
    """where the next block begins in the file"""
    columns: Columns
    scanners: list[Scanner] = field(default_factory=lambda: [Scanner()])
    counts: Counts = field(default_factory=Counts)
    first_bad_offset: int | None = None
    rest: bytes = b""
    """what the block before left over"""
    lost: bool = False
    clean: bool = True
    """whether the last block held nothing but events: no end of the array, no damage"""
    ended: bool = False
    cut: bool = False
    tail: bytearray = field(default_factory=bytearray)
    """what follows the events, or what could not be read of them"""

    def flags(self, *, last: bool) -> Flags:
        """Return what a scanner has to know of the next block."""
        wanted = {Flags.TOP_ARRAY: self.top_array, Flags.FINAL: last, Flags.LOST: self.lost}
        return sum((flag for flag, is_set in wanted.items() if is_set), Flags.NONE)

    def parse(self, size: int, *, last: bool) -> None:
        """Parse the next block: its `size` bytes were put to the first scanner, behind what the one before left."""
        offset = self.offset - len(self.rest)
        parsed = self.scanners[0].parse(self.flags(last=last), self._append, offset=offset)
        self._take(parsed, offset, size, last=last)

    def parse_room(self, room: Room, size: int, *, last: bool) -> None:
        """Parse the next block, whose `size` bytes lie in a room of the first scanner."""
        offset, flags = self.offset - len(self.rest), self.flags(last=last)
        parsed = self.scanners[0].parse_room(room, size, flags, self._append, rest=self.rest, offset=offset)
        self._take(parsed, offset, size, last=last)

    def finish(self) -> None:
        """Take over the rows that the first scanner still holds."""
        self.scanners[0].finish(self._append)

    def _append(self, rows: Rows) -> None:
        self.columns.append(rows, scanner=0, offset=rows.origin)

    def accept(self, parts: list[Rows], parsed: ParsedBlock, *, scanner: int, size: int, last: bool) -> None:
        """Take over the next block as another scanner parsed it."""
        for rows in parts:
            self.columns.append(rows, scanner=scanner, offset=self.offset)
        self._take(parsed, self.offset, size, last=last)

    def keep_tail(self, pieces: Iterable[Buffer]) -> None:
        """Keep what follows the events, within limits."""
        for piece in pieces:
            self.tail += memoryview(piece)[: MAX_TAIL_BYTES + 1 - len(self.tail)]

    def pass_over(self, pieces: Iterable[Buffer]) -> None:
        """Take over what follows the block in which the events ended."""
        for piece in pieces:
            self.keep_tail([piece])
            self.offset += len(piece)

    def _take(self, parsed: ParsedBlock, offset: int, size: int, *, last: bool) -> None:
        self.counts = self.counts.plus(parsed.counts)
        if parsed.first_bad is not None and self.first_bad_offset is None:
            self.first_bad_offset = offset + parsed.first_bad
        self.offset += size
        self.clean = parsed.clean and not self.lost
        self.ended, self.cut, self.lost, self.rest = parsed.ended, parsed.cut, parsed.lost, parsed.rest
        if self.ended or last:
            self.keep_tail([self.rest])
            self.rest = b""


def parse_in_turn(events: Events, fill: Filler, *, beside: bool, done: Callable[[Sequence[Buffer]], None]) -> None:
    """Parse all that `fill` gives, where wanted while another thread fills the room for the block that follows.

    `done` is called after each block with it and the one before.
    """
    scanner, size = events.scanners[0], BLOCK_BYTES
    with ThreadPoolExecutor(1) if beside and not scanner.memory_moves else nullcontext() as pool:
        before: Buffer = b""
        number, room = 0, scanner.room(0, size)
        filled = fill(room.bytes)
        last = False
        while not last:
            last = filled < size
            following = None
            if pool and not last and scanner.fits(events.rest):
                following = pool.submit(fill, scanner.room(number + 1, size).bytes)
            block: Buffer = room.bytes[:filled]
            if scanner.memory_moves or not scanner.fits(events.rest):
                before, block = bytes(before), bytes(block)
            _parse_room(events, room, block, last=last)
            done([before, block])
            before = block
            if not last:
                number += 1
                room = scanner.room(number, size)
                filled = following.result() if following else fill(room.bytes)
    events.finish()


def _parse_room(events: Events, room: Room, block: Buffer, *, last: bool) -> None:
    scanner = events.scanners[0]
    if events.ended:
        events.pass_over([block])
    elif scanner.fits(events.rest):
        events.parse_room(room, len(block), last=last)
    else:
        for piece in (events.rest, block):
            scanner.put(piece)
        events.parse(len(block), last=last)


@dataclass(frozen=True)
class Block:
    """A stretch of the events. `clean` says that it should begin between two events."""

    pieces: list[Buffer]
    clean: bool
    last: bool

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return sum(map(len, self.pieces))


def parse_ahead(events: Events, chunks: Iterator[Buffer], *, threads: int, done: Callable[[], None]) -> None:
    """Parse all chunks on so many threads, while this one unpacks and cuts; `done` is called after each block."""
    with ThreadPoolExecutor(threads) as pool:
        for block, guess in _parsed_ahead(events, cut_blocks(chunks), pool, threads):
            if events.ended:
                events.pass_over(block.pieces)
            elif guess is None or events.rest or events.lost:
                for piece in (events.rest, *block.pieces):
                    events.scanners[0].put(piece)
                events.parse(block.size, last=block.last)
                events.finish()
            else:
                scanner, parts, parsed = guess.result()
                events.accept(parts, parsed, scanner=scanner, size=block.size, last=block.last)
            done()


Guess = Future[tuple[int, list[Rows], ParsedBlock]]


def _parsed_ahead(
    events: Events, blocks: Iterator[Block], pool: ThreadPoolExecutor, threads: int
) -> Iterator[tuple[Block, Guess | None]]:
    """Yield the blocks in order, each with its result in the making where it can be parsed ahead."""
    idle: SimpleQueue[int] = SimpleQueue()
    for _ in range(threads):
        idle.put(len(events.scanners))
        events.scanners.append(Scanner())

    def parse(block: Block) -> tuple[int, list[Rows], ParsedBlock]:
        number = idle.get()
        scanner, parts = events.scanners[number], list[Rows]()
        try:
            for piece in block.pieces:
                scanner.put(piece)
            flags = (Flags.TOP_ARRAY if events.top_array else Flags.NONE) | (Flags.FINAL if block.last else Flags.NONE)
            parsed = scanner.parse(flags, lambda rows: parts.append(rows.copy()))
            scanner.finish(lambda rows: parts.append(rows.copy()))
            return number, parts, parsed
        finally:
            idle.put(number)

    waiting: deque[tuple[Block, Guess | None]] = deque()
    for block in blocks:
        waiting.append((block, pool.submit(parse, block) if block.clean and not events.ended else None))
        if len(waiting) > threads + _AHEAD:
            yield waiting.popleft()
    yield from waiting


def cut_blocks(chunks: Iterator[Buffer]) -> Iterator[Block]:
    """Yield the chunks in blocks of about BLOCK_BYTES, each up to its last separator."""
    pieces: list[Buffer] = []
    clean, size = True, 0
    for chunk in chunks:
        if size >= BLOCK_BYTES:
            cut = _last_separator(pieces[-1])
            rest = bytes(memoryview(pieces[-1])[cut:]) if cut else b""
            if cut:
                pieces[-1] = memoryview(pieces[-1])[:cut]
            yield Block(pieces, clean, False)
            clean, pieces, size = cut > 0, [rest], len(rest)
        pieces.append(chunk)
        size += len(chunk)
    yield Block(pieces, clean, True)


def _last_separator(chunk: Buffer) -> int:
    """Return where the last event of a chunk that begins with its phase starts; 0 if the chunk's end shows none."""
    tail = bytes(memoryview(chunk)[-_SEARCHED_BYTES:])
    at = len(tail)
    for _ in range(_MAX_TRIES):
        at = tail.rfind(b'"ph"', 0, at)
        if at < 0:
            return 0
        found = _BETWEEN_EVENTS.search(tail, max(0, at - 256), at)
        if found:
            return len(chunk) - len(tail) + found.start(1)
    return 0
