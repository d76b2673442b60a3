"""What is the mean step of the training, by all logged steps and not by those of the profiled window?

    mean step = ordinary step + what recurs in some steps (`recurring.py`)

The logged steps that count ran without the profiler, after the warm-up. A step is ordinary where no cause takes
longer than usual there and it is not far longer than the others. Causes are regions of the step log beside the work
of training itself (data_loading, loader_start, checkpoint, evaluation, ...), and host time outside every region.
A single long step without a named cause is a hiccup: it is left out, and said.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from stepscope.analyze.step.logged_steps import (
    UNNAMED,
    WORK_REGIONS,
    Floats,
    LoggedSteps,
    Mask,
    cause_times,
    in_window,
    logged_steps,
    region_times,
)
from stepscope.analyze.step.recurring import NOTHING_RECURS, OUTSIDE, Recurring
from stepscope.contract.step_line import (
    DATA_LOADING,
    LOADER_START,
)
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.step_log import StepLog
from stepscope.stats.distinct import common
from stepscope.trace.table import Int64s
from stepscope.units import ms

_MOSTLY_EXPLAINED = 0.5
_MIN_BEFORE = 10
_BEFORE_AND_AFTER = 0.05
_MIN_TO_TELL = 0.02
_LOADING_FACTORS = (0.2, 5.0)
_MIN_TOGETHER = 3
_ALWAYS_TOGETHER = 0.9


@dataclass(frozen=True, eq=False, repr=False)
class TrainingStep(ArrayRecord):
    """The mean step over all logged steps that count."""

    mean_ns: float
    ordinary_ns: float
    recurring: Recurring
    num_steps: int
    """logged steps that count, on the rank with the fewest"""
    event_steps: dict[int, frozenset[int]]
    """by rank: numbers of the logged steps, profiled ones included, that are not ordinary"""
    region_gain_ns: dict[int, dict[int, dict[str, float]]]
    """by rank, ordinary profiled step of the window and region: how much longer it takes in the mean of the ordinary
    steps without the profiler; negative where it takes less"""
    work_gain_ns: dict[int, dict[str, float]]
    """by rank and region of WORK_REGIONS: how much longer it takes in the mean step than in the ordinary one"""
    loading_factor: dict[int, float]
    """by rank: how long loading data takes in ordinary steps against the profiled ones of the window"""
    has_regions: bool
    """False for logs of step times alone: then long steps are known to recur, and nothing of why"""
    notes: tuple[str, ...]

    @property
    def uneven(self) -> str | None:
        """Return what to know where the mean step is more than the ordinary one; else None."""
        more_ns = self.mean_ns - self.ordinary_ns
        if more_ns < _MIN_TO_TELL * self.mean_ns:
            return None
        return (
            f"the mean of {self.num_steps} logged steps is {ms(self.mean_ns):.2f} ms, an ordinary one takes "
            f"{ms(self.ordinary_ns):.2f} ms: {ms(more_ns):.2f} ms per step recur in some steps only"
        )


def training_step(logs: Sequence[StepLog]) -> TrainingStep | None:
    """Return the mean training step of the logs, None where a rank has fewer than eight steps that count."""
    ranks = [logged_steps(log) for log in logs]
    if not ranks or any(r is None for r in ranks):
        return None
    known = [r for r in ranks if r is not None]
    ordinary_ns, disturbed = _ordinary(known)
    mean_ns = ordinary_ns + max(0.0, float(np.mean([r.mean_ns - r.ordinary_mean_ns for r in known])))
    found = _recurring(known, mean_ns - ordinary_ns)
    return TrainingStep(
        mean_ns=mean_ns,
        ordinary_ns=ordinary_ns,
        recurring=found,
        num_steps=min(int(r.counts.sum()) for r in known),
        event_steps={r.log.rank: frozenset(r.log.step[r.event].tolist()) for r in known},
        region_gain_ns={r.log.rank: _region_gain(r) for r in known},
        work_gain_ns={r.log.rank: _work_gain(r) for r in known},
        loading_factor={r.log.rank: _loading_factor(r) for r in known},
        has_regions=all(region_times(r.log) for r in known),
        notes=(*disturbed, *_hiccups(known)),
    )


def _ordinary(ranks: Sequence[LoggedSteps]) -> tuple[float, list[str]]:
    """Return the ordinary step, and a note where the steps before the window differ from those after it.

    Then those before it are the job's: nothing had been attached to it yet.
    """
    before, after = ([_phase_mean(r, phase) for r in ranks] for phase in ("before", "after"))
    every = float(np.mean([r.ordinary_mean_ns for r in ranks]))
    if any(x is None for x in (*before, *after)):
        return every, []
    first, last = (float(np.mean([x for x in xs if x is not None])) for xs in (before, after))
    if abs(last / first - 1) <= _BEFORE_AND_AFTER:
        return every, []
    return first, [
        f"ordinary steps took {ms(first):.2f} ms before the window and {ms(last):.2f} ms after it "
        f"({100 * (last / first - 1):+.0f} %): those before it are taken as the job's"
    ]


def _phase_mean(rank: LoggedSteps, phase: str) -> float | None:
    mine = rank.ordinary & (np.array(rank.log.phase, str) == phase)
    return float(rank.step_ns[mine].mean()) if mine.sum() >= _MIN_BEFORE else None


def _recurring(ranks: Sequence[LoggedSteps], total_ns: float) -> Recurring:
    """Return what recurs, brought to the time that it adds to the step."""
    steps = reduce(common, [r.log.step[r.counts] for r in ranks])
    causes = tuple(dict.fromkeys(name for r in ranks for name in r.causes))
    if not len(steps) or total_ns <= 0:
        return NOTHING_RECURS
    excess = np.zeros((len(causes), len(ranks), len(steps)))
    for i, rank in enumerate(ranks):
        at = _at(rank.log.step, steps)
        for j, cause in enumerate(causes):
            if cause in rank.causes:
                excess[j, i] = rank.causes[cause][at]
    excess = _with_loader_starts(_without_waiting(excess, causes), causes)
    shown = [bool(each.any()) for each in excess]
    found = Recurring(
        tuple(c for c, s in zip(causes, shown, strict=True) if s), tuple(r.log.rank for r in ranks), excess[shown]
    )
    modelled = found.total_ns
    if modelled < _MOSTLY_EXPLAINED * total_ns:
        return Recurring(found.causes, found.ranks, found.excess_ns, 1.0, total_ns - modelled)
    return Recurring(found.causes, found.ranks, found.excess_ns, total_ns / modelled, 0.0)


def _without_waiting(excess: Floats, causes: tuple[str, ...]) -> Floats:
    """Return the excess without time outside regions where another rank does something that has a name.

    There the others wait for it, in whatever call that happens to be.
    """
    named = [j for j, cause in enumerate(causes) if cause not in UNNAMED]
    if OUTSIDE not in causes or not named or excess.shape[1] < 2:
        return excess
    busy = excess[named].sum(axis=0)
    others_busy = np.array([np.delete(busy, i, axis=0).max(axis=0) > busy[i] for i in range(len(busy))])
    out = excess.copy()
    out[causes.index(OUTSIDE)][others_busy] = 0.0
    return out


def _with_loader_starts(excess: Floats, causes: tuple[str, ...]) -> Floats:
    """Return the excess with time outside regions counted as the loader's where it comes and goes with the loader's.

    A loader that is made anew starts its workers and joins the old ones around its first batch: that time is in no
    region of logs that know none for it.
    """
    if OUTSIDE not in causes or DATA_LOADING not in causes or LOADER_START in causes:
        return excess
    outside, data = (excess[causes.index(name)] for name in (OUTSIDE, DATA_LOADING))
    together = (outside > 0) & (data > 0)
    if together.sum() < _MIN_TOGETHER or together.sum() < _ALWAYS_TOGETHER * max((outside > 0).sum(), (data > 0).sum()):
        return excess
    out = excess.copy()
    out[causes.index(DATA_LOADING)] += np.where(together, outside, 0.0)
    out[causes.index(OUTSIDE)] = np.where(together, 0.0, outside)
    return out


def _at(numbers: Int64s, wanted: Int64s) -> npt.NDArray[np.int64]:
    order = np.argsort(numbers, kind="stable")
    return np.asarray(order[np.searchsorted(numbers, wanted, sorter=order)])


def _region_gain(rank: LoggedSteps) -> dict[int, dict[str, float]]:
    """Return how much longer each region takes in ordinary steps than in each ordinary profiled one."""
    log = rank.log
    times = region_times(log) | cause_times(log)
    usual = {name: float(time[rank.ordinary].mean()) for name, time in times.items()}
    window = np.flatnonzero(in_window(log) & ~rank.event)
    return {int(log.step[i]): {name: usual[name] - float(time[i]) for name, time in times.items()} for i in window}


def _loading_factor(rank: LoggedSteps) -> float:
    """Return 1 where either is unknown or next to nothing."""
    time = region_times(rank.log).get(DATA_LOADING)
    window = in_window(rank.log) & ~rank.event
    if time is None or not window.any():
        return 1.0
    usual, profiled = float(time[rank.ordinary].mean()), float(time[window].mean())
    least = _MIN_TO_TELL * rank.ordinary_mean_ns
    return float(np.clip(usual / profiled, *_LOADING_FACTORS)) if min(usual, profiled) > least else 1.0


def _work_gain(rank: LoggedSteps) -> dict[str, float]:
    times = {name: time for name, time in region_times(rank.log).items() if name in WORK_REGIONS}
    return _gains(times, rank.counts & ~rank.hiccup, rank.ordinary)


def _gains(times: dict[str, Floats], more: Mask, less: Mask) -> dict[str, float]:
    gains = {name: float(time[more].mean() - time[less].mean()) for name, time in times.items()}
    return {name: gain for name, gain in gains.items() if gain > 0}


def _hiccups(ranks: Sequence[LoggedSteps]) -> list[str]:
    left_out = sorted({int(n) for r in ranks for n in r.log.step[r.hiccup]})
    if not left_out:
        return []
    which = ", ".join(map(str, left_out[:3]))
    return [f"step {which} alone took over 1.5 times the median and does not recur: the mean step is without it"]
