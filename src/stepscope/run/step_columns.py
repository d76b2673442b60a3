"""Lines of a step log into columns, in memory that the log's own size bounds.

A line may name numbers that no other line has (one region per step): a column of its own for each would grow with the
square of the log. So numbers are kept sparse while lines are read, and become columns only as far as they are filled:

| what                                   | bound                                                                     |
|----------------------------------------|---------------------------------------------------------------------------|
| distinct names                         | MAX_NAMES; later ones are left out and counted                            |
| columns                                | the fullest ones, up to COLUMN_BYTES_PER_VALUE bytes for each number read |
"""

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.side_file import is_number
from stepscope.trace.table import Int64s

MISSING = -1
MAX_NAMES = 4096
COLUMN_BYTES_PER_VALUE = 64
"""a column that every eighth step fills takes as much"""
FREE_COLUMN_BYTES = 64 << 20
_MAX_PHASES = 64
_MAX_DEPTH = 16
_COUNTS = ("step", "start_ns", "end_ns", "dur_ns")
_OWN_COLUMNS = frozenset((*_COUNTS, "device_ns", "profiled", "phase"))


class StepColumns:
    """The columns of the step lines added so far."""

    def __init__(self) -> None:
        self._counts = {name: array("q") for name in (*_COUNTS, "device_ns")}
        self._profiled = bytearray()
        self._phases: list[str] = []
        self._known_phases: dict[str, str] = {}
        self._numbers: dict[str, tuple[array[int], array[float]]] = {}
        self._seen: set[int] = set()
        self.repeated_lines = 0
        """lines of a step that came before; the first counts"""
        self.left_out_values = 0
        """numbers under names beyond the limits"""

    def __len__(self) -> int:
        return len(self._profiled)

    def add(self, line: dict[str, Any]) -> bool:
        """Add a line; returns whether it is one of a step."""
        if not all(is_count(line.get(name)) for name in _COUNTS):
            return False
        if line["step"] in self._seen:
            self.repeated_lines += 1
            return True
        self._seen.add(line["step"])
        for name, column in self._counts.items():
            value = line.get(name)
            column.append(value if isinstance(value, int) and is_count(value) else MISSING)
        phase = str(line.get("phase") or "")[:_MAX_PHASES]
        self._phases.append(self._known_phases.setdefault(phase, phase))
        for path, number in _leaves({k: v for k, v in line.items() if k not in _OWN_COLUMNS}):
            self._put(path, number)
        self._profiled.append(bool(line.get("profiled")))
        return True

    def counts(self, name: str) -> Int64s:
        """Return one of the columns that every step has: MISSING where a line lacks it."""
        return np.array(self._counts[name], np.int64)

    def profiled(self) -> npt.NDArray[np.bool_]:
        """Return which steps the profiler watched."""
        return np.frombuffer(bytes(self._profiled), np.uint8).astype(bool)

    def phases(self) -> tuple[str, ...]:
        """Return the phase of each step."""
        return tuple(self._phases)

    def numbers(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return every other number by its dotted path, NaN where a step lacks it; the fullest within the bound."""
        num_values = sum(len(rows) for rows, _ in self._numbers.values())
        left = max(FREE_COLUMN_BYTES, COLUMN_BYTES_PER_VALUE * num_values)
        kept = set()
        for path in sorted(self._numbers, key=lambda path: -len(self._numbers[path][0])):
            left -= 8 * len(self)
            if left < 0:
                self.left_out_values += len(self._numbers[path][0])
            else:
                kept.add(path)
        return {path: self._column(*values) for path, values in self._numbers.items() if path in kept}

    def _put(self, path: str, number: float) -> None:
        if path not in self._numbers:
            if len(self._numbers) >= MAX_NAMES:
                self.left_out_values += 1
                return
            self._numbers[path] = (array("q"), array("d"))
        rows, values = self._numbers[path]
        rows.append(len(self))
        values.append(number)

    def _column(self, rows: "array[int]", values: "array[float]") -> npt.NDArray[np.float64]:
        column = np.full(len(self), np.nan)
        column[np.array(rows, np.int64)] = np.array(values)
        return column


def is_count(value: object) -> bool:
    """Return whether a value is a whole number that a time or a count can have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """Yield every finite number below `value` with its dotted path."""
    if isinstance(value, dict):
        if depth < _MAX_DEPTH:
            for name, below in value.items():
                yield from _leaves(below, f"{path}.{name}" if path else str(name), depth + 1)
    elif is_number(value):
        yield path, float(value)
