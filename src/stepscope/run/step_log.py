"""What do the step logs say: every step of every rank, profiled or not, and the step's time without the profiler?

    rank00000.steps.jsonl   header line, then one line per step -> `StepLog`, columns instead of lines

A log grows while the job runs and its writer may be killed: a last line that is cut off is normal and left out,
any other line that is no step is counted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.errors import InputError
from stepscope.run_folder import json_object, rank_of
from stepscope.stats import Spread, mad_sigma, recurring_long, slow_start, spread
from stepscope.trace.table import Int64s
from stepscope.units import ms

ENDING = ".steps.jsonl"
MISSING = -1
SETTLING_STEPS = 1
"""unprofiled steps after a profiled one that do not count: ranks still wait for each other's export"""
_PROFILER_WARM_UP = "warmup"
_LONGEST_LINE = 1_000_000


@dataclass(frozen=True)
class StepLog:
    """The steps of one rank in the order of the log."""

    rank: int
    header: dict[str, Any]
    step: Int64s
    start_ns: Int64s
    end_ns: Int64s
    dur_ns: Int64s
    device_ns: Int64s
    """time between the device's ends of two steps, MISSING where it was not measured"""
    profiled: npt.NDArray[np.bool_]
    phase: tuple[str, ...]
    numbers: dict[str, npt.NDArray[np.float64]]
    """every other number by its path (`regions.forward_pass.ns`, `memory.allocated_bytes`); NaN where there is none"""
    lost_lines: int = 0
    """lines in the middle that are no steps; a cut last line is not among them"""

    def __len__(self) -> int:
        return len(self.step)

    def column(self, path: str) -> npt.NDArray[np.float64]:
        """Return one number per step, NaN where the step lacks it."""
        return self.numbers.get(path, np.full(len(self), np.nan))

    @property
    def undisturbed(self) -> npt.NDArray[np.bool_]:
        """Return which steps ran without the profiler (its own warm-up included) and not right after it."""
        disturbed = self.profiled | (np.array(self.phase, str) == _PROFILER_WARM_UP)
        near = disturbed.copy()
        for k in range(1, SETTLING_STEPS + 1):
            near[k:] |= disturbed[:-k]
        return ~near


@dataclass(frozen=True)
class UnprofiledStep:
    """The step's time without the profiler."""

    median_ms: float
    """median over ranks of each rank's median"""
    mean_ms: float
    """mean over ranks of each rank's mean"""
    long_share: float
    """share of steps over 1.5 times the median, 0 where those are rare: else the mean is the step, not the median"""
    sigma_ms: float
    """robust standard deviation over all steps that count"""
    over_ranks_ms: Spread
    """of the ranks' medians"""
    num_steps: int
    """steps that count, on the rank with the fewest"""
    warm_up_steps: int
    """left out at the start, on the rank with the most"""

    @property
    def uneven(self) -> str | None:
        """Return what to know where long steps recur, so that the mean is the step and not the median; else None."""
        if not self.long_share:
            return None
        return (
            f"{100 * self.long_share:.0f} % of the unprofiled steps take over 1.5 times their median of "
            f"{self.median_ms:.2f} ms: the step is their mean, {self.mean_ms:.2f} ms"
        )


def step_logs(folder: str | Path) -> tuple[StepLog, ...]:
    """Return the step logs of a run folder by rank; none where it has none."""
    found = sorted(p for p in Path(folder).glob(f"*{ENDING}") if rank_of(p.name) is not None and p.is_file())
    return tuple(read_step_log(p) for p in found)


def read_step_log(path: str | Path) -> StepLog:
    """Return one rank's log; an `InputError` where the file cannot be opened."""
    path = Path(path)
    try:
        with path.open("rb") as f:
            header, lines, lost = _parsed(f)
    except OSError as e:
        raise InputError(f"expected a step log, found {e.strerror} at {path}; check the path") from e
    rank = header.get("rank")
    named = rank_of(path.name)
    known = rank if _is_count(rank) else named if named is not None else 0
    return step_log_of(lines, rank=int(known or 0), header=header, lost_lines=lost)


def step_log_of(
    lines: Sequence[dict[str, Any]], *, rank: int, header: dict[str, Any] | None = None, lost_lines: int = 0
) -> StepLog:
    """Return the columns of these lines."""
    return StepLog(
        rank=rank,
        header=header or {},
        step=_ints(lines, "step"),
        start_ns=_ints(lines, "start_ns"),
        end_ns=_ints(lines, "end_ns"),
        dur_ns=_ints(lines, "dur_ns"),
        device_ns=_ints(lines, "device_ns"),
        profiled=np.array([bool(line.get("profiled")) for line in lines], bool),
        phase=tuple(str(line.get("phase") or "") for line in lines),
        numbers=_numbers(lines),
        lost_lines=lost_lines,
    )


def unprofiled_step(logs: Iterable[StepLog]) -> UnprofiledStep | None:
    """Return the step's time without the profiler, from the steps after warm-up; None where no step ran without it."""
    by_rank = [_settled(log) for log in logs]
    known = [(settled, left_out) for settled, left_out in by_rank if len(settled)]
    if not known:
        return None
    medians = [float(np.median(settled)) for settled, _ in known]
    over_ranks = spread([ms(m) for m in medians])
    assert over_ranks is not None
    return UnprofiledStep(
        median_ms=ms(float(np.median(medians))),
        mean_ms=ms(float(np.mean([settled.mean() for settled, _ in known]))),
        long_share=float(np.median([recurring_long(settled).mean() for settled, _ in known])),
        sigma_ms=ms(mad_sigma(np.concatenate([settled for settled, _ in known]))),
        over_ranks_ms=over_ranks,
        num_steps=min(len(settled) for settled, _ in known),
        warm_up_steps=max(left_out for _, left_out in known),
    )


def _settled(log: StepLog) -> tuple[Int64s, int]:
    """Return the durations of undisturbed steps after warm-up, and how many steps the warm-up took."""
    undisturbed = log.dur_ns[log.undisturbed & (log.dur_ns > 0)]
    first = slow_start(undisturbed)
    return undisturbed[first:], first


def _parsed(lines: Iterable[bytes]) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Return the header, the steps, and how many lines were neither."""
    header: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    lost = 0
    torn = False
    for line in lines:
        lost += torn  # what looked torn was not the last line
        torn = False
        found = _object(line)
        if found is None:
            torn = bool(line.strip())
        elif _is_step(found):
            steps.append(found)
        elif not steps and not header:
            header = found
        else:
            lost += 1
    return header, steps, lost


def _object(line: bytes) -> dict[str, Any] | None:
    return json_object(line) if len(line) <= _LONGEST_LINE else None


def _is_step(line: dict[str, Any]) -> bool:
    return all(_is_count(line.get(name)) for name in ("step", "start_ns", "end_ns", "dur_ns"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _ints(lines: Sequence[dict[str, Any]], name: str) -> Int64s:
    values = (line.get(name) for line in lines)
    return np.array([v if isinstance(v, int) and _is_count(v) else MISSING for v in values], np.int64)


_OWN_COLUMNS = frozenset(("step", "start_ns", "end_ns", "dur_ns", "device_ns", "profiled", "phase"))


def _numbers(lines: Sequence[dict[str, Any]]) -> dict[str, npt.NDArray[np.float64]]:
    columns: dict[str, npt.NDArray[np.float64]] = {}
    for i, line in enumerate(lines):
        for path, value in _leaves({k: v for k, v in line.items() if k not in _OWN_COLUMNS}):
            if path not in columns:
                columns[path] = np.full(len(lines), np.nan)
            columns[path][i] = value
    return columns


def _leaves(value: Any, path: str = "") -> Iterable[tuple[str, float]]:
    """Yield every finite number below `value` with its dotted path."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _leaves(below, f"{path}.{name}" if path else str(name))
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value):
        yield path, float(value)
