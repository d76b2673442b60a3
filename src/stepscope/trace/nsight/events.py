"""The columns of the event table as chunks of rows fill them, process by process.

    kernels of processes 7 and 9, runtime calls of both, ...    ->    one table of process 7, one of process 9

All share one table of strings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.records import ArrayRecord
from stepscope.trace.budget import BYTES_PER_TEXT, Share
from stepscope.trace.nsight.database import Bools
from stepscope.trace.schema import ARGS, DENSE
from stepscope.trace.table import Int64s, SparseColumn

_NO_OFFSET = -1
"""as `offset`: the event is a row of a database, not a place in a text"""
_BYTES_PER_ARG = 12
_BYTES_PER_EVENT = sum(np.dtype(column.dtype).itemsize for column in DENSE)


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


@dataclass(eq=False, repr=False)
class _Process(ArrayRecord):
    dense: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    args: dict[str, list[tuple[Int64s, Int64s]]] = field(default_factory=dict)
    length: int = 0
    counts: dict[str, int] = field(default_factory=dict)


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
            of = self._processes.setdefault(process, _Process())
            _count(of, "bad_time", int((mine & ~rows.timed).sum()))
            _count(of, "negative_duration", int((mine & backwards).sum()))
            keep = np.flatnonzero(mine & rows.timed & ~backwards)
            if len(keep):
                self._append(of, rows, keep, lasting)

    def _append(self, of: _Process, rows: Rows, keep: npt.NDArray[np.intp], lasting: Int64s) -> None:
        self._share.take(len(keep) * _BYTES_PER_EVENT)
        columns: Mapping[str, npt.NDArray[Any]] = {
            "ph": np.full(len(keep), ord("X"), np.uint8),
            "cat": rows.cat[keep],
            "name": rows.name[keep],
            "pid": rows.pid[keep],
            "tid": rows.tid[keep],
            "ts_ns": rows.start_ns[keep],
            "dur_ns": lasting[keep],
            "offset": np.full(len(keep), _NO_OFFSET, np.int64),
        }
        for name, values in columns.items():
            of.dense.setdefault(name, []).append(values)
        for name, (values, known) in rows.args.items():
            has = known[keep]
            if has.any():
                where = np.flatnonzero(has)
                self._share.take(len(where) * _BYTES_PER_ARG)
                of.args.setdefault(name, []).append((where + of.length, values[keep][where]))
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
        dense = {}
        for column in DENSE:
            dense[column.name] = np.concatenate(of.dense.pop(column.name)).astype(column.dtype, copy=False)
        args = {}
        for arg in ARGS:
            if parts := of.args.pop(arg.name, None):
                rows = np.concatenate([rows for rows, _ in parts]).astype(np.int32)
                args[arg.name] = SparseColumn(rows, np.concatenate([values for _, values in parts]))
        return dense, args


def _count(of: _Process, what: str, number: int) -> None:
    if number:
        of.counts[what] = of.counts.get(what, 0) + number
