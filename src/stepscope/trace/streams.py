"""A trace file as a stream of uncompressed bytes: plain, gzip (one member or many) or zstd, told by its content.

A compressed file that was cut gives what it holds and then `truncated`. One that unpacks to an absurd size is
refused while it is read, not after.
"""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from zlib_ng import zlib_ng

from stepscope.errors import TraceError

COMPRESSED_CHUNK = 1 << 18
TYPICAL_RATIO = 15
MAX_RATIO = 300
"""Real traces compress 15 to 30 times."""
RATIO_FREE_BYTES = 64 << 20

_GZIP_ERROR: Any = zlib_ng.error
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_MAX_WINDOW = 1 << 27


class Stream:
    """An open trace file: `chunks()` gives its uncompressed bytes, the attributes say how far it got."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = _regular_size(path)
        self.read_bytes = 0
        """compressed bytes read so far"""
        self.raw_bytes = 0
        """uncompressed bytes given so far"""
        self.packed = False
        self.truncated = False
        self.notes: list[str] = []

    def expected_raw_bytes(self) -> int:
        """Return about how large the file is unpacked."""
        return self.size * (TYPICAL_RATIO if self.packed else 1)

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the uncompressed content in pieces of `size` bytes; the last one, and some others, are shorter."""
        try:
            with self.path.open("rb", buffering=0) as f:
                for chunk in self._unpacked(f, size):
                    self.raw_bytes += len(chunk)
                    yield chunk
        except OSError as e:
            if not self.raw_bytes:
                raise TraceError(f"{self.path}: cannot be read: {e.strerror or e}") from e
            self.truncated = True
            self.notes.append(f"reading stopped early: {e.strerror or e}")

    def _unpacked(self, f: IO[bytes], size: int) -> Iterator[bytes]:
        magic = f.read(4)
        f.seek(0)
        self.packed = magic.startswith(_GZIP) or magic == _ZSTD
        if magic.startswith(_GZIP):
            return self._gunzipped(f, size)
        if magic == _ZSTD:
            return self._unzstd(f, size)
        return self._plain(f, size)

    def _plain(self, f: IO[bytes], size: int) -> Iterator[bytes]:
        while chunk := f.read(size):
            self.read_bytes += len(chunk)
            yield chunk

    def _gunzipped(self, f: IO[bytes], size: int) -> Iterator[bytes]:
        inflate: Any = zlib_ng.decompressobj(wbits=31)
        pending = b""
        while pending or (pending := self._compressed(f)):
            if inflate.eof:
                if not pending.startswith(_GZIP[: len(pending)]):
                    self._note_garbage(pending)
                    return
                inflate = zlib_ng.decompressobj(wbits=31)
            try:
                chunk = inflate.decompress(pending, size)
            except _GZIP_ERROR:
                self.truncated = True
                self.notes.append("compressed data is damaged; what follows the damage is lost")
                return
            pending = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            self._check_ratio(len(chunk))
            if chunk:
                yield chunk
        self.truncated = self.truncated or not inflate.eof

    def _unzstd(self, f: IO[bytes], size: int) -> Iterator[bytes]:
        import zstandard  # only where a trace is packed that way

        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW).stream_reader(
            cast(IO[bytes], _CountingReader(f, self)),
            read_size=COMPRESSED_CHUNK,
            read_across_frames=True,
            closefd=False,
        )
        while True:
            try:
                chunk = reader.read(size)
            except zstandard.ZstdError as e:
                if not self.raw_bytes:
                    raise TraceError(f"{self.path}: zstd data cannot be unpacked: {e}") from e
                self.truncated = True
                self.notes.append("compressed data is damaged; what follows the damage is lost")
                return
            if not chunk:
                return
            self._check_ratio(len(chunk))
            yield chunk

    def _compressed(self, f: IO[bytes]) -> bytes:
        data = f.read(COMPRESSED_CHUNK)
        self.read_bytes += len(data)
        return data

    def _note_garbage(self, garbage: bytes) -> None:
        if garbage.strip(b"\0"):
            self.notes.append("bytes after the compressed data are ignored")

    def _check_ratio(self, more: int) -> None:
        total = self.raw_bytes + more
        if total > RATIO_FREE_BYTES and total > MAX_RATIO * self.read_bytes:
            raise TraceError(
                f"{self.path}: unpacks to more than {MAX_RATIO} times its size, traces to 15 to 30 times; it looks "
                "like a decompression bomb: unpack it yourself if it is genuine"
            )


class _CountingReader:
    """The compressed file, counting what is read of it."""

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
