"""A stream of events parsed block by block, on one thread or several, with the same result.

Blocks are cut where one event ends and the next begins, as far as the bytes tell. Several threads parse them
ahead of knowing whether that is right; a block's result counts only if the block before it ended exactly at the
cut. Otherwise it is parsed again behind what the other left, so a separator inside a string costs time, not truth.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

from stepscope.trace.header import MAX_TAIL_BYTES
from stepscope.trace.scanner import Buffer, Counts, Flags, Parsed, Part, Scanner

SEPARATORS = (b"\n  },\n  {", b"\r\n  },\r\n  {")
_AHEAD = 2
"""blocks in flight beyond one per thread"""


@dataclass(frozen=True)
class Block:
    """A stretch of the events. `clean` says that it should begin between two events."""

    pieces: list[Buffer]
    offset: int
    clean: bool
    last: bool


@dataclass
class Events:
    """All that the events of a file gave, before the strings are joined."""

    parts: list[tuple[int, int, Part]] = field(default_factory=list)
    """(scanner, offset of the block, rows)"""
    scanners: list[Scanner] = field(default_factory=list)
    counts: Counts = Counts()
    first_bad_offset: int | None = None
    ended: bool = False
    cut: bool = False
    tail: bytearray = field(default_factory=bytearray)
    """what follows the events, or what could not be read of them"""


def cut_blocks(first: Buffer, chunks: Iterator[bytes], *, offset: int) -> Iterator[Block]:
    """Yield the events in blocks: `first` and then the chunks, each up to its last separator."""
    carried: Buffer = b""
    clean = True
    chunk: Buffer = first
    while True:
        following = next(chunks, None)
        cut = len(chunk) if following is None else _last_separator(chunk)
        head = memoryview(chunk)[: cut or len(chunk)]
        yield Block([carried, head], offset, clean, following is None)
        if following is None:
            return
        offset += len(carried) + len(head)
        clean = cut > 0
        carried = bytes(memoryview(chunk)[len(head) :])
        chunk = following


def _last_separator(chunk: Buffer) -> int:
    data = chunk if isinstance(chunk, bytes | bytearray) else bytes(chunk)
    return max((found + len(s) - 1 if (found := data.rfind(s)) >= 0 else 0) for s in SEPARATORS)


def parse_blocks(blocks: Iterator[Block], *, top_array: bool, threads: int, done: Callable[[], None]) -> Events:
    """Return what the blocks hold; `done` is called after each."""
    events = Events()
    left: bytes = b""
    lost = False
    base = Flags.TOP_ARRAY if top_array else Flags.NONE
    with _speculating(blocks, base, threads, events) as parsed_ahead:
        for block, guess in parsed_ahead:
            if events.ended:
                _keep_tail(events, block.pieces)
            else:
                pieces = [left, *block.pieces]
                if left or lost or guess is None:
                    flags = base | (Flags.FINAL if block.last else Flags.NONE) | (Flags.LOST if lost else Flags.NONE)
                    number, parsed = 0, events.scanners[0].parse(pieces, flags)
                else:
                    number, parsed = guess.result()
                _add(events, number, parsed, block.offset - len(left))
                rest = _rest(pieces, parsed.consumed)
                lost = parsed.lost
                left = b"" if parsed.ended else rest
                if parsed.ended or block.last:
                    _keep_tail(events, [rest])
            done()
    return events


@contextmanager
def _speculating(
    blocks: Iterator[Block], flags: Flags, threads: int, events: Events
) -> Iterator[Iterator[tuple[Block, "Future[tuple[int, Parsed]] | None"]]]:
    """Give the blocks in order, each with its result in the making where it could be parsed ahead."""
    events.scanners.append(Scanner())
    if threads == 1:
        yield ((block, None) for block in blocks)
        return
    idle: SimpleQueue[int] = SimpleQueue()
    for _ in range(threads):
        idle.put(len(events.scanners))
        events.scanners.append(Scanner())

    def parse(block: Block) -> tuple[int, Parsed]:
        number = idle.get()
        try:
            return number, events.scanners[number].parse(
                block.pieces, flags | (Flags.FINAL if block.last else Flags.NONE)
            )
        finally:
            idle.put(number)

    def ahead() -> Iterator[tuple[Block, "Future[tuple[int, Parsed]] | None"]]:
        waiting: deque[tuple[Block, Future[tuple[int, Parsed]] | None]] = deque()
        for block in blocks:
            waiting.append((block, pool.submit(parse, block) if block.clean and not events.ended else None))
            if len(waiting) > threads + _AHEAD:
                yield waiting.popleft()
        yield from waiting

    with ThreadPoolExecutor(threads) as pool:
        yield ahead()


def _add(events: Events, scanner: int, parsed: Parsed, offset: int) -> None:
    events.parts.extend((scanner, offset, part) for part in parsed.parts)
    events.counts = events.counts.plus(parsed.counts)
    if parsed.first_bad is not None and events.first_bad_offset is None:
        events.first_bad_offset = offset + parsed.first_bad
    events.ended = parsed.ended
    events.cut = parsed.cut


def _rest(pieces: list[Buffer], consumed: int) -> bytes:
    """Return what follows the first `consumed` bytes of the pieces."""
    rest = []
    for piece in pieces:
        if consumed < len(piece):
            rest.append(bytes(memoryview(piece)[consumed:]))
        consumed = max(consumed - len(piece), 0)
    return b"".join(rest)


def _keep_tail(events: Events, pieces: list[Buffer]) -> None:
    for piece in pieces:
        events.tail += memoryview(piece)[: MAX_TAIL_BYTES + 1 - len(events.tail)]
