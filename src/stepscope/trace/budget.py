"""How much memory may the tables of some input take? A bound in bytes from the input's size on disk.

Tables of 25 real traces, ours and of other projects, on NVIDIA, AMD and MTIA, took 4.0 to 6.3 times their gzipped size.
Input that asks for three times as much is not what a profiler wrote: a few kilobytes can unpack to gigabytes of empty
events.
"""

from threading import Lock

from stepscope.errors import InputError

FREE_BYTES = 256 << 20
BYTES_PER_INPUT_BYTE = 20
BYTES_PER_TEXT = 300
"""of a distinct string: in the scanner, as bytes, as text, and in the table of strings"""
JSON_FACTOR = 32
"""bytes in memory of a byte of JSON at worst, a list of small objects"""


class OverBudget(InputError):
    """Input whose tables would take more memory than its size accounts for."""


class Budget:
    """The memory that the tables of one input may take together; shared by all threads that read it."""

    def __init__(self, input_bytes: int) -> None:
        self.limit_bytes = max(FREE_BYTES, BYTES_PER_INPUT_BYTE * input_bytes)
        self._used_bytes = 0
        self._lock = Lock()

    def share(self) -> "Share":
        """Return an account of one file's share."""
        return Share(self)

    def _take(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes += size_bytes
            over = self._used_bytes > self.limit_bytes
        if over:
            raise OverBudget(
                f"needs more memory than its size accounts for ({self.limit_bytes >> 20} MB for all files together); "
                "it multiplies when it is read, as traces of a profiler do not; record fewer steps if it is one"
            )


class Share:
    """What one file took; given back where the file turns out to be none."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Take as much; an `OverBudget` where that is more than there is."""
        self._taken_bytes += size_bytes
        self._budget._take(size_bytes)

    def give_back(self) -> None:
        """Return everything."""
        with self._budget._lock:
            self._budget._used_bytes -= self._taken_bytes
        self._taken_bytes = 0
