"""The columns of the event table as chunks of rows fill them, process by process.

    kernels of processes 7 and 9, runtime calls of both, ...    ->    one table of process 7, one of process 9

All share one table of strings. Values are kept in the type of their column from the first, in blocks that are filled in
place; what is the same for every row of a database (`ph`, `offset`) is kept once.
"""

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.budget import BYTES_PER_TEXT, Share
from stepscope.trace.nsight.database import Bools
from stepscope.trace.schema import ARGS, DENSE
from stepscope.trace.table import Int64s, SparseColumn

_SAME_FOR_ALL = {"ph": ord("X"), "offset": -1}
"""columns of one value: all events have a duration, and are rows of a database rather than places in a text"""
_BYTES_PER_ARG = 12
_BYTES_PER_EVENT = sum(np.dtype(column.dtype).itemsize for column in DENSE if column.name not in _SAME_FOR_ALL)
_BLOCK = 1 << 17
"""values at most; a large block goes back to the system once it is joined, many small ones between others do not"""


class Texts:
    """One table of strings, each kept once."""

    def __init__(self, share: Share) -> None:
        self._ids: dict[str, int] = {}
        self._all: list[str] = []
        self._share = share

    def id(self, text: str) -> int:
        """Return the number of a string."""
        found = self._ids.get(text)
        if found is None:
            self._share.take(BYTES_PER_TEXT + len(text))
            found = self._ids[text] = len(self._all)
            self._all.append(text)
        return found

    def text(self, number: int) -> str:
        """Return the string of a number."""
        return self._all[number]

    def strings(self) -> list[str]:
        """Return all strings by their number."""
        return self._all


@dataclass(eq=False, repr=False)
class Rows(ArrayRecord):
    """Rows of one kind out of one chunk; arguments are `(values, which rows have one)`."""

    process: Int64s
    cat: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    pid: Int64s
    tid: Int64s
    start_ns: Int64s
    end_ns: Int64s
    timed: Bools
    """whether both times are numbers"""
    args: dict[str, tuple[Int64s, Bools]] = field(default_factory=dict)


class Growing:
    """Values of one column while they come: blocks of its type, joined into one array at the end."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._blocks: list[npt.NDArray[Any]] = []
        self._used = 0
        """of the last block"""
        self.length = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        at = 0
        while at < len(values):
            if not self._blocks or self._used == len(self._blocks[-1]):
                size = min(max(self.length, len(values) - at), _BLOCK)
                self._blocks.append(np.empty(size, self._dtype))
                self._used = 0
            number = min(len(values) - at, len(self._blocks[-1]) - self._used)
            self._blocks[-1][self._used : self._used + number] = values[at : at + number]
            at, self._used, self.length = at + number, self._used + number, self.length + number

    def joined(self) -> npt.NDArray[Any]:
        """Return all values and forget them here, block by block."""
        out = np.empty(self.length, self._dtype)
        at = 0
        blocks, self._blocks = self._blocks[::-1], []
        while blocks:
            block = blocks.pop()
            number = min(len(block), self.length - at)
            out[at : at + number] = block[:number]
            at += number
        self.length = 0
        return out


class _Process:
    """The table of one process while it grows."""

    def __init__(self) -> None:
        self.dense = {c.name: Growing(c.dtype) for c in DENSE if c.name not in _SAME_FOR_ALL}
        self.args: dict[str, tuple[Growing, Growing]] = {}
        """rows and values"""
        self.length = 0
        self.counts: dict[str, int] = {}


class Events:
    """The tables of all processes while they grow."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._processes: dict[int, _Process] = {}

    def add(self, rows: Rows) -> None:
        """Add rows to the tables of their processes; rows without sound times are counted and left out."""
        backwards = rows.timed & (rows.end_ns < rows.start_ns)
        with np.errstate(over="ignore"):
            lasting = rows.end_ns - rows.start_ns
        backwards |= rows.timed & ~backwards & (lasting < 0)  # a difference beyond 64 bits
        for process in np.unique(rows.process).tolist():
            mine = rows.process == process
            of = self._processes.get(process) or self._processes.setdefault(process, _Process())
            _count(of, "bad_time", int((mine & ~rows.timed).sum()))
            _count(of, "negative_duration", int((mine & backwards).sum()))
            keep = np.flatnonzero(mine & rows.timed & ~backwards)
            if len(keep):
                self._append(of, rows, keep, lasting)

    def _append(self, of: _Process, rows: Rows, keep: npt.NDArray[np.intp], lasting: Int64s) -> None:
        self._share.take(len(keep) * _BYTES_PER_EVENT)
        columns: dict[str, npt.NDArray[Any]] = {
            "cat": rows.cat,
            "name": rows.name,
            "pid": rows.pid,
            "tid": rows.tid,
            "ts_ns": rows.start_ns,
            "dur_ns": lasting,
        }
        for name, column in columns.items():
            of.dense[name].add(column[keep])
        for name, (values, known) in rows.args.items():
            where = np.flatnonzero(known[keep])
            if len(where):
                self._share.take(len(where) * _BYTES_PER_ARG)
                numbers, found = of.args.setdefault(name, (Growing("int32"), Growing("int64")))
                numbers.add(where + of.length)
                found.add(values[keep][where])
        of.length += len(keep)

    def processes(self) -> list[int]:
        """Return the processes that have rows."""
        return [key for key, of in self._processes.items() if of.length]

    def counts(self, process: int) -> dict[str, int]:
        """Return how many rows of a process were left out, by the field of `Quality` that says so."""
        return self._processes[process].counts

    def take(self, process: int) -> tuple[dict[str, npt.NDArray[Any]], dict[str, SparseColumn]]:
        """Return the columns of one process and forget them here."""
        of = self._processes.pop(process)
        dense: dict[str, npt.NDArray[Any]] = {}
        for column in DENSE:
            if column.name in _SAME_FOR_ALL:
                dense[column.name] = np.broadcast_to(np.array(_SAME_FOR_ALL[column.name], column.dtype), of.length)
            else:
                dense[column.name] = of.dense.pop(column.name).joined()
        args: dict[str, SparseColumn] = {}
        for arg in ARGS:
            if arg.name in of.args:
                numbers, values = of.args.pop(arg.name)
                rows = numbers.joined()
                alike = next((one.rows for one in args.values() if np.array_equal(one.rows, rows)), rows)
                args[arg.name] = SparseColumn(alike, values.joined())
        return dense, args


def _count(of: _Process, what: str, number: int) -> None:
    if number:
        of.counts[what] = of.counts.get(what, 0) + number
