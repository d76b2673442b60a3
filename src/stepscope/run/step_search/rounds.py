"""Several steps of the optimizer that follow passes without gradients, again and again, are one step of the loop.

A policy writes answers, is scored, and is then improved in several steps by what it wrote. The step log shows it:

    step          4    5    6    7    8    9
    evaluation   68        67        99             rounds of two steps: 4-5, 6-7, 8-9

Every second step of the optimizer is another kind of step than the one before it, and neither stands for the run: the
round does. Rounds are counted from 0 in the log, and those of the window by the same numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.run.rank import Rank
from stepscope.run.step_log import MISSING, PASSES_NS, StepLog, unprofiled_step
from stepscope.run.step_search.unmarked_steps import with_steps
from stepscope.run.steps import Steps
from stepscope.stats.robust import OFTEN
from stepscope.trace.table import Int64s
from stepscope.units import ms

MAX_STEPS = round(1 / OFTEN)
"""of a round: what comes more seldom recurs in some steps, and is told apart from the ordinary one"""
_MIN_ROUNDS = 4
_MIN_SHARE = 0.1
"""of the time of all steps: passes that take less do not make a step another one"""
_LEVELS = "memory."
"""numbers that are no sums over time"""
_IN_STEPS = ("tokens_per_step", "samples_per_step")
_OF_ONE_STEP = (
    "flops_per_step",
    "hardware_flops_per_step",
    "profiled_step_ms",
    "unprofiled_before",
    "unprofiled_after",
)


@dataclass(frozen=True)
class Rounds:
    """Which steps of the optimizer are one round."""

    size: int
    """steps of the optimizer"""
    first: int
    """number of the step that the first round begins with"""

    def of(self, number: Int64s) -> Int64s:
        """Return the round of each step, negative before the first.

        >>> Rounds(2, 4).of(np.array([3, 4, 5, 6])).tolist()
        [-1, 0, 0, 1]
        """
        return (number - self.first) // self.size

    def whole(self, number: Int64s) -> npt.NDArray[np.intp]:
        """Return the places of the steps of each round that is there as a whole, one row each; steps are in order."""
        mine = self.of(number)
        first = np.flatnonzero(np.diff(mine, prepend=mine[:1] - 1) != 0)
        size = np.diff(first, append=len(mine))
        first = first[(size == self.size) & (mine[first] >= 0)]
        return first[:, None] + np.arange(self.size)


def in_rounds(
    ranks: Sequence[Rank], logs: Sequence[StepLog], description: dict[str, Any]
) -> tuple[list[Rank], tuple[StepLog, ...], dict[str, Any], list[str]]:
    """Return a run whose steps are rounds, and a line that says so; the same run where its steps are steps."""
    found = {_rounds(log) for log in logs}
    rounds = found.pop() if len(found) == 1 else None
    steps = [_steps_in_rounds(rank.steps, rounds) if rounds else None for rank in ranks]
    if rounds is None or any(s is None for s in steps):
        return list(ranks), tuple(logs), description, []
    line = (
        f"a step of this report is a round of {rounds.size} steps of the optimizer: passes without gradients, as those "
        f"of a policy that writes what it is trained on, come once in {rounds.size} of them"
    )
    joined = tuple(_log_in_rounds(log, rounds) for log in logs)
    described = _description_in_rounds(description, rounds, joined)
    return [with_steps(r, s) for r, s in zip(ranks, steps, strict=True) if s is not None], joined, described, [line]


def _rounds(log: StepLog) -> Rounds | None:
    """Return the rounds of one rank, None where passes without gradients are rare, irregular or short."""
    passes = np.nan_to_num(log.column(PASSES_NS))
    begins = log.step[passes > 0]
    if len(begins) < _MIN_ROUNDS or (np.diff(log.step) != 1).any():
        return None
    size, first, last = int(begins[1] - begins[0]), int(begins[0]), int(log.step[-1])
    is_regular = (np.diff(begins) == size).all() and last - begins[-1] < size
    is_so_from_the_start = first - log.step[0] <= 2 * size  # before the recorder knows the loop's modules
    if not (1 < size <= MAX_STEPS and is_regular and is_so_from_the_start):
        return None
    return Rounds(size, first) if passes.sum() >= _MIN_SHARE * log.dur_ns.sum() else None


def _steps_in_rounds(steps: Steps, rounds: Rounds) -> Steps | None:
    """Return the whole rounds of a window, None where there are none or the steps are not the recorder's."""
    if not (steps.by_profiler and steps.numbered):
        return None
    each = rounds.whole(steps.number)
    if not len(each):
        return None
    first, last = each[:, 0], each[:, -1]
    number = rounds.of(steps.number[first])
    start_ns, end_ns = steps.start_ns[first], steps.end_ns[last]
    return replace(steps, number=number, start_ns=start_ns, end_ns=end_ns, in_rounds=steps)


def _log_in_rounds(log: StepLog, rounds: Rounds) -> StepLog:
    """Return a log with a line for each whole round: times and counts are summed, levels are the last step's."""
    each = rounds.whole(log.step)
    first, last = each[:, 0], each[:, -1]
    device_ns = log.device_ns[each]
    return replace(
        log,
        step=rounds.of(log.step[first]),
        start_ns=log.start_ns[first],
        end_ns=log.end_ns[last],
        dur_ns=log.dur_ns[each].sum(axis=1),
        device_ns=np.where((device_ns > 0).all(axis=1), device_ns.sum(axis=1), MISSING),
        profiled=np.asarray(log.profiled[each].any(axis=1)),
        phase=tuple(log.phase[i] for i in last.tolist()),
        numbers={
            name: values[last] if name.startswith(_LEVELS) else _summed(values[each])
            for name, values in log.numbers.items()
        },
    )


def _summed(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the sum of each row's known values, NaN where none is."""
    return np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values, axis=1))


def _description_in_rounds(description: dict[str, Any], rounds: Rounds, logs: Sequence[StepLog]) -> dict[str, Any]:
    """Return what is said of a step, said of a round; what was counted or compared in single steps is not known."""
    step = unprofiled_step(logs)
    out = {name: value for name, value in description.items() if name not in _OF_ONE_STEP}
    for name in _IN_STEPS:
        if isinstance(out.get(name), int):
            out[name] *= rounds.size
    # The recorder's own warnings compare the steps after the window with those before it.
    return {**out, "unprofiled_step_ms": None if step is None else ms(step.median_ns), "warnings": []}
