"""What does a step consist of without the profiler? The budget, with the profiler's own cost taken out.

The profiler slows the host, not the device: a step that is measured longer than it is without the profiler is longer
by host time. The excess over the unprofiled step is taken from each rank's budget in this order, until it is gone;
within a line all entries shrink by the same factor:

    on a device                                                   on a host
    1. the profiler's own buffers                                 1. operators and what lies between them: recording
    2. launch_gap, except the device's turnaround                    costs the same for each; three tenths stay
    3. host_sync, host_stall, allocator, data_loading, unknown    2. wait, pipeline_bubble
    4. wait, pipeline_bubble: other ranks' hosts were slowed too; 3. data_loading, host_stall
       other ranks' work on a shared device
    5. everything else                                            4. everything else

Line 5 means that the device itself was slower while profiled, which a warning says. Where the step is *longer* without
the profiler (loops that synchronise differ from those that do not), the step log says in which parts; what it does not
know is `unknown`, with a warning. What recurs in other steps than the window's comes on top (`training_budget.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.budget import PART_OF_CAUSE, RankBudget
from stepscope.analyze.idle import CAUSE_NAMES, Cause
from stepscope.analyze.layers import PART_CODE, PARTS
from stepscope.analyze.step_periods import NO_STEP, StepPeriods, profiled_step_ns
from stepscope.analyze.training_step import COMMUNICATION, DATA_CAUSES, TrainingStep
from stepscope.contract.step_line import BACKWARD, CLIPPING, FORWARD, GRADIENT_SYNC, LR_SCHEDULING, OPTIMIZER
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.stats.robust import FAR_LONGER
from stepscope.units import ms, ns_of_ms

# How does the budget of the window become that of the mean training step?
#
# The window's ordinary steps, without the profiler's cost, are the ordinary step. To it comes what recurs in other
# steps, by the regions of the step log:
#
#     data_loading, loader_start                                         data_loading
#     checkpoint, evaluation, garbage_collection, compilation, others    host_stall
#     time outside every region                                          host_stall; exposed_transfer where such steps
#                                                                        have more collectives than the others
#     another rank is busy with any of these                             wait
#     forward, backward or optimizer take longer                         their part; on a device all parts in
#     proportion

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

    #: which of the rank's periods are ordinary steps
    ordinary: Mask
    #: by part: how much longer it takes without the profiler than with it
    gap_ns: Floats
    #: by part: what recurs in other steps
    added_ns: Floats
    #: what loading data takes without the profiler against with it; 1 on a device, which hides some of it
    loading_factor: float
    #: what recurs and is of the same kind as the ordinary step: in proportion to its parts
    spread_ns: float


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
    recurring = training.recurring
    out = np.zeros(len(PARTS))
    if rank in recurring.ranks:
        at = recurring.ranks.index(rank)
        for cause in recurring.causes:
            out[PART_CODE[_part_of_cause(cause)]] += recurring.rank_ns(cause)[at]
        out[PART_CODE["wait"]] += recurring.waiting_ns()[at]
    else:
        out[PART_CODE["wait"]] += recurring.total_ns - recurring.other_ns
    longer = _by_part(training.work_gain_ns.get(rank, {}), on_device=False)
    if on_device or not longer.sum():
        return out, recurring.other_ns
    return out + longer * (recurring.other_ns / longer.sum()), 0.0


def _part_of_cause(cause: str) -> str:
    if cause == COMMUNICATION:
        return "exposed_transfer"
    return "data_loading" if cause in DATA_CAUSES else "host_stall"


def _by_part(by_region_ns: dict[str, float], *, on_device: bool) -> Floats:
    out = np.zeros(len(PARTS))
    for region, time_ns in by_region_ns.items():
        work = _PART_OF_WORK.get(region)
        part = _part_of_cause(region) if work is None else "launch_gap" if on_device else work
        out[PART_CODE[part]] += time_ns
    return out


# shares of a step below this are not worth a warning
_MIN_SHARE_FOR_WARNING = 0.02

# A rank's step as entries: the parts that are not idle, communication that no rank matches, idle time by cause.
_UNMATCHED = len(PARTS)
_FIRST_CAUSE = _UNMATCHED + 1
_NUM_ENTRIES = _FIRST_CAUSE + len(Cause)
_WAITS = (PART_CODE["wait"], PART_CODE["pipeline_bubble"], _UNMATCHED)


def _causes(*causes: Cause) -> tuple[int, ...]:
    return tuple(_FIRST_CAUSE + cause for cause in causes)


_ON_DEVICE = (
    _causes(Cause.PROFILER),
    _causes(Cause.LAUNCH),
    _causes(Cause.SYNC, Cause.STALL, Cause.GC, Cause.ALLOCATOR, Cause.DATA, Cause.OTHER_STREAM, Cause.QUEUED,
            Cause.UNKNOWN),
    (*_WAITS, *_causes(Cause.SHARED)),
    tuple(range(_NUM_ENTRIES)),
)  # fmt: skip
_OPERATORS = tuple(PART_CODE[part] for part in ("forward", "backward", "optimizer", "other_compute", "unknown"))
_ON_HOST = (
    _OPERATORS,
    _WAITS,
    tuple(PART_CODE[part] for part in ("data_loading", "host_stall")),
    tuple(range(_NUM_ENTRIES)),
)
# what a device idles for where the step log has a part, and no gap of the device shows it
_CAUSE_OF_LOGGED = ((Cause.DATA, "data_loading"), (Cause.STALL, "host_stall"), (Cause.LAUNCH, "launch_gap"))
# of a host's operators is their own time, however much recording costs: the rest of the excess is elsewhere
_MIN_OWN_SHARE = 0.3


@dataclass(frozen=True)
class PartTime:
    """One part of the step, mean over ranks."""

    part: str
    ns_per_step: float
    #: of the step
    pct: float
    #: before the profiler's cost was taken out
    profiled_ns: float
    #: of `ns_per_step`, what recurs in some steps of the training and is not in the ordinary one
    recurring_ns: float = 0.0

    @property
    def correction_ns(self) -> float:
        """Return what taking out the profiler's cost changed; negative where the part shrank."""
        return self.ns_per_step - self.recurring_ns - self.profiled_ns


@dataclass(frozen=True, eq=False, repr=False)
class StepBudget(ArrayRecord):
    """What a step of the run consists of. Parts sum to the unprofiled step where known, else to the profiled one."""

    profiled_ns: float
    #: the mean training step
    unprofiled_ns: float | None
    #: the unprofiled step in which nothing recurs that the window's steps do not have
    ordinary_ns: float | None
    #: in the order of `PARTS`, zeros included
    parts: tuple[PartTime, ...]
    #: idle device time per step by cause, mean over ranks with a device, the profiler's cost taken out
    idle_ns: dict[str, float]
    #: one row per rank with a budget, one column per part; each row sums to the step
    rank_part_ns: Floats
    #: within `unknown`: exposed communication that no other rank matches
    unmatched_ns: float
    warnings: tuple[str, ...]

    @property
    def step_ns(self) -> float:
        """Return what the parts sum to."""
        return self.unprofiled_ns if self.unprofiled_ns is not None else self.profiled_ns

    @property
    def overhead_pct(self) -> float | None:
        """Return by how much the profiler lengthened the step, 0 where it was not longer, None where unknown."""
        return None if not self.ordinary_ns else max(0.0, 100 * (self.profiled_ns / self.ordinary_ns - 1))

    def ns(self, part: str) -> float:
        """Return one part."""
        return self.parts[PART_CODE[part]].ns_per_step


def unprofiled_step_ns(run: Run, given_ns: int | None = None) -> int | None:
    """Return the step's time without the profiler: as given, else as the run says it, else None.

    The run's description has the median of its steps. Where long steps recur their mean is taken from the step logs.
    """
    said_ns = given_ns
    if given_ns is None:
        logged = run.unprofiled
        described_ns = ns_of_ms(run.description.get("unprofiled_step_ms"))
        said_ns = logged.mean_ns if logged and logged.uneven else described_ns
    return said_ns if said_ns is not None and said_ns > 0 else None


def step_budget(
    budgets: Sequence[RankBudget | None],
    *,
    unprofiled_ns: int | None = None,
    beyond: Sequence[LogAdditions] | None = None,
    whole: str = "step",
) -> StepBudget | None:
    """Return the step of the run from the typical steps of its ranks, None where no rank has any.

    `whole` is what the budget is of, in words: without steps it is the window.

    `beyond` is what the step logs add to the window, one per rank that has a budget: then `unprofiled_ns` is the
    ordinary step.
    """
    known = [b for b in budgets if b is not None]
    if beyond is not None:
        known = [_of_periods(b, x.ordinary) for b, x in zip(known, beyond, strict=True)]
    profiled_ns = profiled_step_ns([b.periods for b in known])
    if profiled_ns is None:
        return None
    ordinary_ns = unprofiled_ns
    before = np.array([_entries(b, even=ordinary_ns is None) for b in known])
    after = before
    if ordinary_ns is not None:
        after = _with_loading_as_logged(before, beyond)
        orders = [_ON_DEVICE if b.on_device else _ON_HOST for b in known]
        gaps = [None] * len(known) if beyond is None else [b.gap_ns for b in beyond]
        each = zip(after, orders, gaps, strict=True)
        after = np.array([_corrected(entries, order, ordinary_ns, gap) for entries, order, gap in each])
    parts, added = _folded(after), _without_profiler_added(_folded(after), beyond)
    return StepBudget(
        profiled_ns=profiled_ns,
        unprofiled_ns=None if ordinary_ns is None else ordinary_ns + float(added.sum(axis=1).mean()),
        ordinary_ns=ordinary_ns,
        parts=_part_times((parts + added).mean(axis=0), _folded(before).mean(axis=0), added.mean(axis=0)),
        idle_ns=_idle(known, after, added),
        rank_part_ns=parts + added,
        unmatched_ns=float(after[:, _UNMATCHED].mean()),
        warnings=tuple(_warnings(before, after, profiled_ns, ordinary_ns, whole=whole)),
    )


def _with_loading_as_logged(entries: Floats, beyond: Sequence[LogAdditions] | None) -> Floats:
    out = entries.copy()
    if beyond is not None:
        out[:, PART_CODE["data_loading"]] *= [b.loading_factor for b in beyond]
    return out


def _without_profiler_added(parts: Floats, beyond: Sequence[LogAdditions] | None) -> Floats:
    if beyond is None:
        return np.zeros_like(parts)
    return np.array([b.added_ns + b.spread_ns * row / row.sum() for row, b in zip(parts, beyond, strict=True)])


def _entries(budget: RankBudget, *, even: bool) -> Floats:
    """Return the mean of a rank's typical steps, brought to its median period; to the mean period where long steps
    recur, unless the step has to be `even`.
    """
    typical = budget.periods.typical
    causes = budget.cause_ns[typical].mean(axis=0)
    unmatched = budget.unmatched_comm_ns[typical].mean()
    parts = budget.part_ns[typical].mean(axis=0)
    for cause, part in PART_OF_CAUSE.items():
        parts[PART_CODE[part]] -= causes[cause]
    parts[PART_CODE["unknown"]] -= unmatched
    entries = np.concatenate((np.maximum(parts, 0), [unmatched], causes))
    to_ns = budget.periods.mean_ns if budget.periods.uneven and not even else budget.periods.median_ns
    return entries * (to_ns / entries.sum())


def _of_periods(budget: RankBudget, kept: Mask) -> RankBudget:
    return replace(
        budget,
        periods=budget.periods.of(kept),
        part_ns=budget.part_ns[kept],
        cause_ns=budget.cause_ns[kept],
        unmatched_comm_ns=budget.unmatched_comm_ns[kept],
    )


def _corrected(
    entries: Floats, order: tuple[tuple[int, ...], ...], step_ns: float, gap_ns: Floats | None = None
) -> Floats:
    """Return the entries that sum to the unprofiled step. `gap_ns` says by part what takes longer in it, where the
    step logs tell.
    """
    out = entries.copy()
    excess = float(out.sum()) - step_ns
    if excess < 0:
        if gap_ns is not None and gap_ns.sum() > 0:
            told = gap_ns * min(1.0, -excess / gap_ns.sum())
            excess += told.sum()
            for cause, part in _CAUSE_OF_LOGGED if order is _ON_DEVICE else ():
                out[_FIRST_CAUSE + cause] += told[PART_CODE[part]]
                told[PART_CODE[part]] = 0.0
            out[: len(PARTS)] += told
        out[_FIRST_CAUSE + Cause.UNKNOWN if order is _ON_DEVICE else PART_CODE["unknown"]] -= excess
        return out
    for line in order:
        there = float(out[list(line)].sum())
        taken = min(excess, there * (1 - _MIN_OWN_SHARE) if line is _OPERATORS else there)
        if taken > 0:
            out[list(line)] *= 1 - taken / there
            excess -= taken
    return out


def _folded(entries: Floats) -> Floats:
    out = entries[:, : len(PARTS)].copy()
    out[:, PART_CODE["unknown"]] += entries[:, _UNMATCHED]
    for cause, part in PART_OF_CAUSE.items():
        out[:, PART_CODE[part]] += entries[:, _FIRST_CAUSE + cause]
    return out


def _part_times(parts: Floats, profiled: Floats, recurring: Floats) -> tuple[PartTime, ...]:
    whole = float(parts.sum())
    return tuple(
        PartTime(name, float(after), 100 * float(after) / whole, float(before), float(more))
        for name, after, before, more in zip(PARTS, parts, profiled, recurring, strict=True)
    )


def _idle(budgets: Sequence[RankBudget], entries: Floats, added: Floats) -> dict[str, float]:
    which = [b.on_device for b in budgets]
    if not any(which):
        return {}
    mean = entries[which, _FIRST_CAUSE:].mean(axis=0)
    for cause, part in _CAUSE_OF_LOGGED:
        mean[cause] += added[which, PART_CODE[part]].mean()
    return {CAUSE_NAMES[cause]: float(mean[cause]) for cause in Cause if mean[cause] > 0}


def _warnings(
    before: Floats, after: Floats, profiled_ns: float, unprofiled_ns: float | None, *, whole: str
) -> list[str]:
    lines = []
    step_ns = unprofiled_ns or profiled_ns
    if unprofiled_ns is None:
        lines.append(
            f"unprofiled step time unknown: the {ms(profiled_ns):.2f} ms {whole}, and idle time in its budget, include "
            "what the profiler costs the host; give --unprofiled-step-ms, or record with stepscope"
        )
    elif (recorded_ns := float(before.sum(axis=1).mean())) < unprofiled_ns:
        grown = after - before
        unknown = float(grown[:, [PART_CODE["unknown"], _FIRST_CAUSE + Cause.UNKNOWN]].sum(axis=1).mean())
        where = "the difference is in `unknown`"
        if unknown < 0.5 * (unprofiled_ns - recorded_ns):
            where = "the step log says in which parts"
        lines.append(
            f"the step took {ms(unprofiled_ns):.2f} ms without the profiler and {ms(recorded_ns):.2f} ms with it: "
            f"{where}, the profiler's overhead counts as 0"
        )
    busy = [code for code in range(_UNMATCHED) if code not in _WAITS]
    shrunk = float((before[:, busy] - after[:, busy]).sum(axis=1).mean())
    if unprofiled_ns is not None and shrunk > _MIN_SHARE_FOR_WARNING * step_ns:
        lines.append(
            f"{ms(shrunk):.2f} ms per step were taken from work itself to reach the unprofiled step: it ran slower "
            "while profiled, or the unprofiled time is of other steps"
        )
    unmatched = float(after[:, _UNMATCHED].mean())
    if unmatched > _MIN_SHARE_FOR_WARNING * step_ns:
        lines.append(
            f"{ms(unmatched):.2f} ms per step of exposed communication match no other rank's: waiting and transfer "
            "cannot be told apart and are in `unknown`"
        )
    return lines
