"""How long did every step of the run take on every rank, and which of them are special: profiled, with an evaluation
or a checkpoint in them, or outliers?

From the step logs; without them from the recorded steps, all of which are profiled.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.step.periods import NO_STEP, step_periods
from stepscope.contract.step_line import CHECKPOINT, COMPILATION, EVALUATION, GARBAGE_COLLECTION, LOADER_START
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import Run
from stepscope.run.step_log import StepLog
from stepscope.stats.distinct import distinct
from stepscope.trace.table import Int64s

MARKED = (EVALUATION, CHECKPOINT, COMPILATION, LOADER_START, GARBAGE_COLLECTION)
"""regions that make a step special; of several in one step the first counts"""
_MIN_MARKED_SHARE = 0.05
"""of its step: a region that takes less changes nothing one could see"""


@dataclass(frozen=True, eq=False, repr=False)
class RunSteps(ArrayRecord):
    """Every step of the run by rank."""

    source: str
    """`step logs` or `recorded steps`"""
    step: Int64s
    ranks: tuple[int, ...]
    dur_ns: npt.NDArray[np.float64]
    """by rank and step; NaN where a rank lacks one"""
    profiled: npt.NDArray[np.bool_]
    """steps that ran under the profiler on any rank"""
    marks: dict[int, str]
    """number of a step -> the region that makes it special"""


def run_steps(run: Run, logs: Sequence[StepLog]) -> RunSteps | None:
    """Return the steps of a run, None where fewer than two are known."""
    found = _from_logs(logs) if any(len(log) for log in logs) else _from_traces(run)
    return found if found is not None and len(found.step) > 1 else None


def _from_logs(logs: Sequence[StepLog]) -> RunSteps:
    logs = [log for log in logs if len(log)]
    step = distinct(np.concatenate([log.step for log in logs]))
    dur = np.full((len(logs), len(step)), np.nan)
    profiled = np.zeros(len(step), bool)
    marks: dict[int, str] = {}
    for row, log in enumerate(logs):
        at = np.searchsorted(step, log.step)
        dur[row, at] = log.dur_ns
        profiled[at] |= log.profiled
        for name in MARKED:
            inside = np.nan_to_num(log.column(f"regions.{name}.ns"))
            for k in np.flatnonzero(inside > _MIN_MARKED_SHARE * log.dur_ns).tolist():
                marks.setdefault(int(log.step[k]), name)
    return RunSteps("step logs", step, tuple(log.rank for log in logs), dur, profiled, marks)


def _from_traces(run: Run) -> RunSteps | None:
    by_rank: list[dict[int, int]] = []
    for rank in run.ranks:
        periods = step_periods(rank) if rank.steps.known else None
        if periods is None or (periods.step == NO_STEP).any():
            by_rank.append({})
            continue
        numbers = rank.steps.number[periods.step].tolist()
        by_rank.append(dict(zip(numbers, periods.dur_ns.tolist(), strict=True)))
    step = np.array(sorted({n for mine in by_rank for n in mine}), np.int64)
    if not len(step):
        return None
    known = [(rank.rank, mine) for rank, mine in zip(run.ranks, by_rank, strict=True) if mine]
    dur = np.array([[mine.get(int(n), np.nan) for n in step] for _, mine in known], float)
    return RunSteps("recorded steps", step, tuple(rank for rank, _ in known), dur, np.ones(len(step), bool), {})
