"""Step logs: every step of every rank, profiled or not, and the step time without the profiler.

    rank00000.steps.jsonl   header line, then one line per step -> `StepLog`, columns instead of lines

A log grows while the job runs and its writer may be killed: a last line that is cut off is normal and left out,
any other line that is no step is counted.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.contract.run_folder import json_object, rank_of
from stepscope.contract.step_line import EVALUATION, WARMUP
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.records import ArrayRecord
from stepscope.side_file import is_number, side_file_lines
from stepscope.stats.robust import Spread, mad_sigma, median, recurring_long, slow_start, spread
from stepscope.trace.table import Int64s
from stepscope.units import ms

# A line may hold numbers that no other line has, and a column for each would grow with the square of the log. So
# numbers are sparse while lines are read; the fullest become columns, up to 64 bytes for each number read.

MISSING = -1
# a column that every eighth step fills takes as much
_COLUMN_BYTES_PER_VALUE = 64
_COUNTS = ("step", "start_ns", "end_ns", "dur_ns")
_OWN_COLUMNS = frozenset((*_COUNTS, "device_ns", "profiled", "phase"))


class StepColumns:
    """The columns of the step lines added so far."""

    def __init__(self) -> None:
        self._counts = {name: array("q") for name in (*_COUNTS, "device_ns")}
        self._profiled = bytearray()
        self._phases: list[str] = []
        self._numbers: dict[str, tuple[array[int], array[float]]] = {}
        self._seen: set[int] = set()
        self._repeated_lines = 0
        self._left_out_values = 0

    def __len__(self) -> int:
        return len(self._profiled)

    def add(self, line: dict[str, Any]) -> bool:
        """Add a line; returns whether it is one of a step."""
        if not all(is_count(line.get(name)) for name in _COUNTS):
            return False
        if line["step"] in self._seen:
            self._repeated_lines += 1
            return True
        self._seen.add(line["step"])
        for name, column in self._counts.items():
            value = line.get(name)
            column.append(value if isinstance(value, int) and is_count(value) else MISSING)
        self._phases.append(intern(str(line.get("phase") or "")[:64]))
        for path, number in _leaves({k: v for k, v in line.items() if k not in _OWN_COLUMNS}):
            if path not in self._numbers and len(self._numbers) >= 4096:
                self._left_out_values += 1
                continue
            rows, values = self._numbers.setdefault(path, (array("q"), array("d")))
            rows.append(len(self))
            values.append(number)
        self._profiled.append(bool(line.get("profiled")))
        return True

    def log(self, *, rank: int, header: dict[str, Any], lost_lines: int) -> "StepLog":
        """Return the columns as a log; of the numbers those that most steps have, NaN where a step lacks one."""
        num_values = sum(len(rows) for rows, _ in self._numbers.values())
        left = max(64 << 20, _COLUMN_BYTES_PER_VALUE * num_values)
        numbers = dict.fromkeys(self._numbers, np.empty(0))
        for path in sorted(self._numbers, key=lambda path: -len(self._numbers[path][0])):
            rows, values = self._numbers[path]
            left -= 8 * len(self)
            if left < 0:
                self._left_out_values += len(rows)
                del numbers[path]
            else:
                numbers[path] = np.full(len(self), np.nan)
                numbers[path][np.array(rows, np.int64)] = np.array(values)
        return StepLog(
            rank=rank,
            header=header,
            **{name: np.array(column, np.int64) for name, column in self._counts.items()},
            profiled=np.frombuffer(bytes(self._profiled), np.uint8).astype(bool),
            phase=tuple(self._phases),
            numbers=numbers,
            lost_lines=lost_lines,
            repeated_lines=self._repeated_lines,
            left_out_values=self._left_out_values,
        )


def is_count(value: object) -> bool:
    """Return whether a value is a whole number that a time or a count can have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        if depth < 16:
            for name, below in value.items():
                yield from _leaves(below, f"{path}.{name}" if path else str(name), depth + 1)
    elif is_number(value):
        yield path, float(value)


# time of forward passes without gradients between the steps of training
PASSES_NS = f"regions.{EVALUATION}.ns"


@dataclass(frozen=True, eq=False, repr=False)
class StepLog(ArrayRecord):
    """The steps of one rank in the order of the log."""

    rank: int
    header: dict[str, Any]
    step: Int64s
    start_ns: Int64s
    end_ns: Int64s
    dur_ns: Int64s
    #: time between the device's ends of two steps, MISSING where it was not measured
    device_ns: Int64s
    profiled: npt.NDArray[np.bool_]
    phase: tuple[str, ...]
    #: every other number by its path (`regions.forward_pass.ns`, `memory.allocated_bytes`); NaN where there is none
    numbers: dict[str, npt.NDArray[np.float64]]
    #: lines in the middle that are no steps; a cut last line is not among them
    lost_lines: int = 0
    #: lines of a step that came before
    repeated_lines: int = 0
    #: numbers under more names than steps can fill
    left_out_values: int = 0

    def __len__(self) -> int:
        return len(self.step)

    def column(self, path: str) -> npt.NDArray[np.float64]:
        """Return one number per step, NaN where the step lacks it."""
        return self.numbers.get(path, np.full(len(self), np.nan))

    @property
    def unprofiled(self) -> npt.NDArray[np.bool_]:
        """Return which steps ran without the profiler (its own warm-up included) and not right after it."""
        disturbed = self.profiled | (np.array(self.phase, str) == WARMUP)
        # nor the step after it: ranks still wait for each other's export
        return ~(disturbed | np.append(False, disturbed[:-1])[: len(disturbed)])


@dataclass(frozen=True)
class UnprofiledStep:
    """The step's time without the profiler."""

    #: median over ranks of each rank's median
    median_ns: int
    #: mean over ranks of each rank's mean
    mean_ns: int
    #: share of steps over 1.5 times the median, 0 where those are rare: else the mean is the step, not the median
    long_share: float
    #: robust standard deviation over all steps that count
    sigma_ns: int
    #: of the ranks' medians
    over_ranks_ns: Spread
    #: steps that count, on the rank with the fewest
    num_steps: int
    #: left out at the start, on the rank with the most
    warm_up_steps: int

    @property
    def uneven(self) -> str | None:
        """Return what to know where long steps recur, so that the mean is the step and not the median; else None."""
        if not self.long_share:
            return None
        return (
            f"{100 * self.long_share:.0f} % of the unprofiled steps take over 1.5 times their median of "
            f"{ms(self.median_ns):.2f} ms: the step is their mean, {ms(self.mean_ns):.2f} ms"
        )


_LOSSES = (
    ("lost_lines", "lines of the step log that are no steps are left out"),
    ("repeated_lines", "lines of the step log repeat a step; its first line counts"),
    ("left_out_values", "numbers of the step log are left out: more names than steps can fill"),
)


def log_since(log: StepLog, step: int) -> StepLog:
    """Return a log without the steps before this one."""
    kept = log.step >= step
    columns = {name: getattr(log, name)[kept] for name in (*_COUNTS, "device_ns", "profiled")}
    phases = tuple(phase for phase, keep in zip(log.phase, kept, strict=True) if keep)
    return replace(log, **columns, phase=phases, numbers={name: values[kept] for name, values in log.numbers.items()})


def step_logs(folder: str | Path) -> tuple[StepLog, ...]:
    """Return the step logs of a run folder by rank; none where it has none."""
    return readable_step_logs(folder)[0]


def readable_step_logs(folder: str | Path) -> tuple[tuple[StepLog, ...], list[str]]:
    """Return the step logs of a run folder that can be read, and a line for each loss."""
    logs, lines = [], []
    for path in sorted(p for p in Path(folder).glob(f"*{'.steps.jsonl'}") if rank_of(p.name) is not None):
        try:
            logs.append(read_step_log(path))
        except InputError as error:
            lines.append(f"left out: {error}")
    for log in logs:
        lines += [f"rank {log.rank}: {n:,} {what}" for name, what in _LOSSES if (n := getattr(log, name))]
    return tuple(logs), lines


def read_step_log(path: str | Path) -> StepLog:
    """Return one rank's log; an `InputError` where the file cannot be opened."""
    path = Path(path)
    try:
        header, columns, lost = _parsed(side_file_lines(path))
    except OSError as e:
        raise InputError(f"{path}: cannot read the step log: {e.strerror}; check the path") from e
    rank = header.get("rank")
    known = rank if isinstance(rank, int) and is_count(rank) and rank <= 1 << 30 else rank_of(path.name) or 0
    return columns.log(rank=known, header=header, lost_lines=lost)


def step_log_of(
    lines: Iterable[dict[str, Any]], *, rank: int, header: dict[str, Any] | None = None, lost_lines: int = 0
) -> StepLog:
    """Return the columns of these lines."""
    columns = StepColumns()
    for line in lines:
        columns.add(line)
    return columns.log(rank=rank, header=header or {}, lost_lines=lost_lines)


def unprofiled_step(logs: Iterable[StepLog]) -> UnprofiledStep | None:
    """Return the step's time without the profiler, from the steps after warm-up; None where no step ran without it."""
    known = []
    for log in logs:
        unprofiled = log.dur_ns[log.unprofiled & (log.dur_ns > 0)]
        first = slow_start(unprofiled)
        if len(unprofiled) > first:
            known.append((unprofiled[first:], first))
    if not known:
        return None
    medians = [median(settled) for settled, _ in known]
    over_ranks = spread([round(m) for m in medians])
    assert over_ranks is not None
    return UnprofiledStep(
        median_ns=round(median(medians)),
        mean_ns=round(float(np.mean([settled.mean() for settled, _ in known]))),
        long_share=median([recurring_long(settled).mean() for settled, _ in known]),
        sigma_ns=round(mad_sigma(np.concatenate([settled for settled, _ in known]))),
        over_ranks_ns=over_ranks,
        num_steps=min(len(settled) for settled, _ in known),
        warm_up_steps=max(left_out for _, left_out in known),
    )


def _parsed(lines: Iterable[bytes]) -> tuple[dict[str, Any], StepColumns, int]:
    header: dict[str, Any] = {}
    steps = StepColumns()
    lost = 0
    torn = False
    for line in lines:
        lost += torn  # what looked torn was not the last line
        torn = False
        found = json_object(line)
        if found is None:
            torn = bool(line.strip())
        elif steps.add(found):
            continue
        elif not len(steps) and not header:
            header = found
        else:
            lost += 1
    return header, steps, lost
