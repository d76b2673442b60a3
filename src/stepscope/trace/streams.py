"""A trace file as a stream of uncompressed bytes: plain, gzip (one member or many) or zstd, detected by content.

A compressed file that was cut gives what it holds and then `truncated`. One that unpacks to an absurd size is
refused while it is read, not after.

    chunks()    its bytes, piece by piece
    opened()    a function that fills a buffer with the next of them, without a copy
"""

import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from zlib_ng import gzip_ng, zlib_ng

from stepscope.errors import TraceError

_COMPRESSED_CHUNK = 1 << 18
# Real traces compress 15 to 30 times.
_MAX_RATIO = 300

# fills a buffer with the next bytes and returns their number: fewer than it holds only at the end
Filler = Callable[[memoryview], int]

# of what is unpacked at once before damage, at most so much is lost with it
_CAREFUL_BYTES = 1 << 14
_GZIP_ERROR: Any = zlib_ng.error
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Stream:
    """A trace file: `chunks()` or `opened()` give its uncompressed bytes, the attributes say how far it got."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = _regular_size(path)
        # compressed bytes read so far
        self.read_bytes = 0
        # uncompressed bytes given so far
        self.raw_bytes = 0
        self.packed = False
        self.truncated = False
        self.notes: list[str] = []

    def expected_raw_bytes(self) -> int:
        return self.size * (15 if self.packed else 1)

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the uncompressed content in pieces of `size` bytes; the last one is shorter."""
        buffer = bytearray(size)
        with self.opened() as fill:
            while filled := fill(memoryview(buffer)):
                yield bytes(buffer[:filled])

    @contextmanager
    def opened(self) -> Iterator[Filler]:
        """Open the file: what is given fills a buffer with its next uncompressed bytes."""
        with ExitStack() as stack:
            try:
                f = stack.enter_context(self.path.open("rb", buffering=0))
                magic = self._magic(f)
            except OSError as e:
                raise TraceError(f"{self.path}: cannot be read: {e.strerror or e}") from e
            if magic == _ZSTD:
                some = _filler(self._unzstd(f, _COMPRESSED_CHUNK))
            else:
                some = self._inflated(f) if magic == _GZIP else self._plain(f)

            def fill(buffer: memoryview) -> int:
                filled = 0
                try:
                    while filled < len(buffer) and (more := some(buffer[filled:])):
                        filled += more
                        self.raw_bytes += more
                except OSError as e:
                    self._stopped(e)
                return filled

            yield fill

    def _magic(self, f: IO[bytes]) -> bytes:
        start = f.read(4)
        f.seek(0)
        found = next((magic for magic in (_GZIP, _ZSTD) if start.startswith(magic)), b"")
        self.packed = bool(found)
        return found

    def _stopped(self, error: OSError) -> None:
        if not self.raw_bytes:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        self.truncated = True
        self.notes.append(f"reading stopped early: {error.strerror or error}")

    def _plain(self, f: Any) -> Filler:
        def some(buffer: memoryview) -> int:
            more = f.readinto(buffer) or 0
            self.read_bytes += more
            return more

        return some

    def _inflated(self, f: Any) -> Filler:
        # The reader inside zlib-ng's files unpacks into a given buffer; a file, for versions without it, copies.
        reader = getattr(gzip_ng, "_GzipReader", None)
        packed: Any = reader(f, _COMPRESSED_CHUNK) if reader else gzip_ng.GzipNGFile(fileobj=f, mode="rb")
        careful: Filler | None = None

        def some(buffer: memoryview) -> int:
            nonlocal careful
            if careful is None:
                try:
                    more = packed.readinto(buffer)
                except (_GZIP_ERROR, EOFError, OSError):
                    careful = self._inflated_again(f)
                else:
                    self.read_bytes = f.tell()
                    self._check_ratio(more)
                    return more
            return careful(buffer)

        return some

    def _inflated_again(self, f: IO[bytes]) -> Filler:
        f.seek(0)
        known, self.raw_bytes, self.read_bytes = self.raw_bytes, 0, 0
        chunks = self._gunzipped(f, _CAREFUL_BYTES)
        for chunk in chunks:
            if self.raw_bytes + len(chunk) > known:
                first = chunk[known - self.raw_bytes :]
                self.raw_bytes = known
                return _filler(chain([first], chunks))
            self.raw_bytes += len(chunk)
        self.raw_bytes = known  # no less was given: only the checksum behind it is wrong
        return lambda _: 0

    def _gunzipped(self, f: IO[bytes], size: int) -> Iterator[bytes]:
        inflate: Any = zlib_ng.decompressobj(wbits=31)
        pending = b""
        while pending or (pending := self._compressed(f)):
            if inflate.eof:
                if not pending.startswith(_GZIP[: len(pending)]):
                    if pending.strip(b"\0"):
                        self.notes.append("bytes after the compressed data are ignored")
                    return
                inflate = zlib_ng.decompressobj(wbits=31)
            try:
                chunk = inflate.decompress(pending, size)
            except _GZIP_ERROR:
                self._damaged()
                return
            pending = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            self._check_ratio(len(chunk))
            if chunk:
                yield chunk
        self.truncated = self.truncated or not inflate.eof

    def _unzstd(self, f: IO[bytes], size: int) -> Iterator[bytes]:
        import zstandard  # only where a trace is packed that way

        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            cast(IO[bytes], _CountingReader(f, self)),
            read_size=_COMPRESSED_CHUNK,
            read_across_frames=True,
            closefd=False,
        )
        while True:
            try:
                chunk = reader.read(size)
            except zstandard.ZstdError as e:
                if not self.raw_bytes:
                    raise TraceError(f"{self.path}: zstd data cannot be unpacked: {e}") from e
                self._damaged()
                return
            if not chunk:
                return
            self._check_ratio(len(chunk))
            yield chunk

    def _damaged(self) -> None:
        self.truncated = True
        self.notes.append("compressed data is damaged; what follows the damage is lost")

    def _compressed(self, f: IO[bytes]) -> bytes:
        data = f.read(_COMPRESSED_CHUNK)
        self.read_bytes += len(data)
        return data

    def _check_ratio(self, more: int) -> None:
        total = self.raw_bytes + more
        if total > 64 << 20 and total > _MAX_RATIO * self.read_bytes:
            raise TraceError(
                f"{self.path}: unpacks to more than {_MAX_RATIO} times its size, traces to 15 to 30 times; it looks "
                "like a decompression bomb: unpack it yourself if it is genuine"
            )


def _filler(chunks: Iterator[bytes]) -> Filler:
    left = memoryview(b"")

    def some(buffer: memoryview) -> int:
        nonlocal left
        left = left or memoryview(next(chunks, b""))
        size = min(len(left), len(buffer))
        buffer[:size] = left[:size]
        left = left[size:]
        return size

    return some


class _CountingReader:
    def __init__(self, f: IO[bytes], stream: Stream) -> None:
        self._f, self._stream = f, stream

    def read(self, size: int) -> bytes:
        data = self._f.read(size)
        self._stream.read_bytes += len(data)
        return data


def _regular_size(path: Path) -> int:
    try:
        status = path.stat()
    except OSError as e:
        raise TraceError(f"{path}: cannot be read: {e.strerror or e}") from e
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
        raise TraceError(f"{path}: is {kind}, not a trace; give a file")
    if not status.st_size:
        raise TraceError(f"{path}: is an empty file, not a trace; record it again or leave it out")
    return status.st_size
