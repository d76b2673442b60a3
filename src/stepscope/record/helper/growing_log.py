"""A file that grows by whole lines, on storage that may fail for a while.

Lines that cannot be written wait in memory, within a bound, and are written later in their order; those past the bound
and those left at the end are counted as lost. The file never ends in half a line: one that was cut by a full disk is
taken back.
"""

import os
from pathlib import Path

from stepscope.output_path import open_private

MAX_WAITING_BYTES = 64 << 20


class GrowingLog:
    """One process's log; the file must not exist yet."""

    def __init__(self, path: Path) -> None:
        self._file = open_private(path, os.O_EXCL)
        self._waiting = bytearray()
        self._size_bytes = 0
        self._whole_bytes = 0  # up to the last line's end
        self._refused = 0

    def add(self, line: bytes) -> bool:
        """Take in a line, to be written by the next `flush`; return False where there is no room to keep it."""
        if len(self._waiting) + len(line) >= MAX_WAITING_BYTES:
            self._refused += 1
            return False
        self._waiting += line + b"\n"
        return True

    def flush(self) -> None:
        """Write what waits; on failure raise OSError, and the rest waits on."""
        while self._waiting:
            done = os.write(self._file, self._waiting)
            newline = self._waiting.rfind(b"\n", 0, done)
            if newline >= 0:
                self._whole_bytes = self._size_bytes + newline + 1
            self._size_bytes += done
            del self._waiting[:done]

    def close(self) -> int:
        """Return how many lines were lost, after leaving the file with whole lines only."""
        lost = self._refused + self._waiting.count(b"\n")
        if self._size_bytes > self._whole_bytes:
            os.ftruncate(self._file, self._whole_bytes)
        os.close(self._file)
        return lost
