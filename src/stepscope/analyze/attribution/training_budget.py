"""How does the budget of the window become that of the mean training step?

The window's ordinary steps, without the profiler's cost, are the ordinary step. To it comes what recurs in other
steps, by the regions of the step log:

    data_loading, loader_start                                         data_loading
    checkpoint, evaluation, garbage_collection, compilation, others    host_stall
    time outside every region                                          host_stall; exposed_transfer where such steps
                                                                       have more collectives than the others
    another rank is busy with any of these                             wait
    forward, backward or optimizer take longer                         their part; on a device all parts in proportion
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.step.parts import PART_CODE, PARTS
from stepscope.analyze.step.periods import NO_STEP, StepPeriods
from stepscope.analyze.step.recurring import COMMUNICATION, DATA_CAUSES
from stepscope.analyze.step.training_step import TrainingStep
from stepscope.contract.step_line import BACKWARD, CLIPPING, FORWARD, GRADIENT_SYNC, LR_SCHEDULING, OPTIMIZER
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.stats.robust import FAR_LONGER

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_PART_OF_WORK = {
    FORWARD: "forward",
    BACKWARD: "backward",
    GRADIENT_SYNC: "wait",
    OPTIMIZER: "optimizer",
    LR_SCHEDULING: "optimizer",
    CLIPPING: "optimizer",
}


@dataclass(frozen=True, eq=False, repr=False)
class LogAdditions(ArrayRecord):
    """What the step logs add to one rank's window."""

    ordinary: Mask
    """which of the rank's periods are ordinary steps"""
    gap_ns: Floats
    """by part: how much longer it takes without the profiler than with it"""
    added_ns: Floats
    """by part: what recurs in other steps"""
    loading_factor: float
    """what loading data takes without the profiler against with it; 1 on a device, which hides some of it"""
    spread_ns: float
    """what recurs and is of the same kind as the ordinary step: in proportion to its parts"""


def beyond_window(
    training: TrainingStep, ranks: Sequence[Rank], periods: Sequence[StepPeriods], on_device: Sequence[bool]
) -> list[LogAdditions]:
    """Return per rank what the step logs add to its window; ranks without a log get what the others have."""
    return [_beyond(training, *each) for each in zip(ranks, periods, on_device, strict=True)]


def _beyond(training: TrainingStep, rank: Rank, periods: StepPeriods, on_device: bool) -> LogAdditions:
    added, spread = _added(training, rank.rank, on_device=on_device)
    ordinary = _ordinary(training, rank, periods)
    return LogAdditions(
        ordinary=ordinary,
        gap_ns=_by_part(_gains(training, rank, periods.of(ordinary)), on_device=on_device),
        added_ns=added,
        loading_factor=1.0 if on_device else training.loading_factor.get(rank.rank, 1.0),
        spread_ns=spread,
    )


def _gains(training: TrainingStep, rank: Rank, periods: StepPeriods) -> dict[str, float]:
    """Return by region how much longer it takes in ordinary steps than in those profiled ones that stand for the run.

    Against all of the window's where none of those is in the log: a step that was held up is not what the budget has.
    """
    of_step = training.region_gain_ns.get(rank.rank, {})
    step = periods.step[periods.typical]
    numbers = rank.steps.number[step[step != NO_STEP]].tolist()
    chosen = [of_step[n] for n in numbers if n in of_step] or list(of_step.values())
    means = {name: float(np.mean([gains[name] for gains in chosen])) for name in (chosen[0] if chosen else ())}
    return {name: gain for name, gain in means.items() if gain > 0}


def _ordinary(training: TrainingStep, rank: Rank, periods: StepPeriods) -> Mask:
    """Return the periods whose steps are ordinary; all where that leaves none."""
    events = list(training.event_steps.get(rank.rank, ()))
    in_step = periods.step != NO_STEP
    if not in_step.any():
        return np.ones(len(periods), bool)
    known = periods.complete if periods.complete.any() else in_step
    kept = (~np.isin(rank.steps.number[np.maximum(periods.step, 0)], events) | ~in_step) & known
    if kept.any() and not kept[known].all():
        # What the host does at the end of a step lies in the device's period of the next.
        kept &= periods.dur_ns <= FAR_LONGER * periods.dur_ns[kept].min()
    return kept if kept.any() else np.ones(len(periods), bool)


def _added(training: TrainingStep, rank: int, *, on_device: bool) -> tuple[Floats, float]:
    """Return what recurs by part, and how much of it is more of the ordinary step."""
    recurring = training.recurring
    out = np.zeros(len(PARTS))
    if rank in recurring.ranks:
        at = recurring.ranks.index(rank)
        for cause in recurring.causes:
            out[PART_CODE[part_of_cause(cause)]] += recurring.rank_ns(cause)[at]
        out[PART_CODE["wait"]] += recurring.waiting_ns()[at]
    else:
        out[PART_CODE["wait"]] += recurring.total_ns - recurring.other_ns
    longer = _by_part(training.work_gain_ns.get(rank, {}), on_device=False)
    if on_device or not longer.sum():
        return out, recurring.other_ns
    return out + longer * (recurring.other_ns / longer.sum()), 0.0


def part_of_cause(cause: str) -> str:
    """Return the part of the budget that a recurring cause belongs to."""
    if cause == COMMUNICATION:
        return "exposed_transfer"
    return "data_loading" if cause in DATA_CAUSES else "host_stall"


def _by_part(by_region_ns: dict[str, float], *, on_device: bool) -> Floats:
    """Return times of regions as parts; on a device the host's work shows as gaps between launches."""
    out = np.zeros(len(PARTS))
    for region, time_ns in by_region_ns.items():
        work = _PART_OF_WORK.get(region)
        part = part_of_cause(region) if work is None else "launch_gap" if on_device else work
        out[PART_CODE[part]] += time_ns
    return out
