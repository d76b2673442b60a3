"""In what state was a rank's device while it ran? The recorder's samples as columns.

    rank00000.telemetry.jsonl   {"kind": "device", "name": "NVIDIA H200", ...}                       -> `device`
                                {"kind": "state", "time_ns": ..., "sm_clock_mhz": 1980, ...}         -> a row of each

A value that is not of its kind is unknown, as is one that the driver did not give.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.side_lines import KeptLines, kept_lines, name, number

MAX_STATES = 100_000
"""as many as the recorder keeps"""
_COLUMNS = (
    "time_ns", "step", "utilization_pct", "memory_utilization_pct", "sm_clock_mhz", "memory_clock_mhz", "power_w",
    "temperature_c", "memory_used_bytes",
)  # fmt: skip
_TEXTS = ("name", "uuid")
_LIMITS = ("index", "max_sm_clock_mhz", "max_memory_clock_mhz", "power_limit_w")
_MAX_REASONS = 32

Reasons = frozenset[str] | None


@dataclass(frozen=True, eq=False, repr=False)
class Telemetry(ArrayRecord):
    """The states of one rank's device, as the recorder sampled them, by time."""

    rank: int
    device: dict[str, Any]
    """name and uuid as text, highest clocks and power limit as numbers; what the driver did not give is missing"""
    columns: dict[str, npt.NDArray[np.float64]]
    """by name, a value per sample, NaN where unknown"""
    reasons: tuple[Reasons, ...]
    """why the clocks were held back at each sample, None where unknown"""

    def __len__(self) -> int:
        return len(self.reasons)


@dataclass(frozen=True)
class _Line:
    """A state, or the device where `device` is given."""

    values: tuple[float, ...] = ()
    reasons: Reasons = None
    device: dict[str, Any] | None = None


def read_telemetry(path: Path, *, rank: int, max_bytes: int) -> tuple[Telemetry, KeptLines[Any]]:
    """Return one rank's telemetry, and what was lost of it."""
    found = kept_lines(path, _line, max_bytes=max_bytes, max_kept=MAX_STATES + 1)
    device = next((line.device for line in found.lines if line.device is not None), {})
    states = [line for line in found.lines if line.device is None]
    values = np.array([line.values for line in states]).reshape(-1, len(_COLUMNS))
    order = np.argsort(np.nan_to_num(values[:, 0]), kind="stable")
    columns = {column: values[order, i] for i, column in enumerate(_COLUMNS)}
    return Telemetry(rank, device, columns, tuple(states[i].reasons for i in order)), found


def _line(line: dict[str, Any]) -> _Line | None:
    """Return a line with the values that are of their kind, None for one of another kind."""
    if line.get("kind") == "device":
        texts = {key: name(line[key]) for key in _TEXTS if isinstance(line.get(key), str)}
        limits = {key: known for key in _LIMITS if (known := number(line.get(key))) is not None}
        return _Line(device={**texts, **limits})
    if line.get("kind") != "state":
        return None
    numbers = (number(line.get(column)) for column in _COLUMNS)
    reasons = line.get("throttle_reasons")
    if isinstance(reasons, list):
        return _Line(_known(numbers), frozenset(name(r) for r in reasons[:_MAX_REASONS] if isinstance(r, str)))
    return _Line(_known(numbers))


def _known(numbers: Any) -> tuple[float, ...]:
    return tuple(np.nan if n is None else n for n in numbers)
