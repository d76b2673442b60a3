"""What does a change save, at least and at most? One answer for findings and what-ifs.

saving   = what the replay saves, shrunk as far as the replay takes longer than the step,
           plus what a formula says where no replay can tell;
           never more than the step, nor than the time the change claims to remove
interval = the modelled change's own error and the replay's misfit to the measured step, and, where the step times
           do not tell what the profiler costs, every saving that another cost would give
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import hypot

import numpy as np

from stepscope.analyze.replay.changes import Change
from stepscope.analyze.replay.graph import CircularWaits, end_times, steady_steps, step_ends
from stepscope.analyze.replay.replay import Replay, with_factor, with_host_factor
from stepscope.dataclass import dataclass
from stepscope.records import once_per_record

# of the step: what a replay is wrong by, about, however good its inputs
_MODEL_ERROR = 0.08
# of the host factor, where the step times do not determine it
_OTHER_FACTORS = (0.75, 1.25)


@dataclass(frozen=True)
class Fix:
    """A change to a run with what is known of it beforehand."""

    #: None where no replay can tell (another schedule of a pipeline)
    change: Change | None
    #: relative error of the modelled change
    doubt: float = 0.15
    #: what a formula says it saves per step, where no replay can tell
    formula_ns: float = 0.0
    #: the time per step that it claims to remove; None where only the step is a limit
    limit_ns: float | None = None
    #: which time that is, by name: fixes that claim the same time cannot both remove it
    claim: str = ""


@dataclass(frozen=True)
class Saving:
    """What a fix saves per step."""

    ns: float
    low_ns: float
    high_ns: float


def together(fixes: Sequence[Fix], *, doubt: float | None = None) -> Fix:
    """Return several fixes as one: made in order, as unsure as the least sure.

    Fixes that claim the same time remove it once, so the limit is the sum over different claims of the largest of each.
    """
    if len(fixes) == 1 and doubt is None:
        return fixes[0]
    changes = [f.change for f in fixes if f.change is not None]
    return Fix(
        change=(lambda replay: reduce(lambda done, change: change(done), changes, replay)) if changes else None,
        doubt=max((f.doubt for f in fixes), default=0.0) if doubt is None else doubt,
        formula_ns=sum(f.formula_ns for f in fixes),
        limit_ns=_limit_of_all(fixes),
        claim=" and ".join(sorted({f.claim for f in fixes if f.claim})),
    )


def _limit_of_all(fixes: Sequence[Fix]) -> float | None:
    by_claim: dict[str, float] = {}
    for i, fix in enumerate(fixes):
        if fix.limit_ns is None:
            return None
        claim = fix.claim or f"fix {i}"
        by_claim[claim] = max(by_claim.get(claim, 0.0), fix.limit_ns)
    return sum(by_claim.values()) if by_claim else None


def saving_of(replay: Replay | None, fix: Fix, *, step_ns: float) -> Saving:
    """Return what a fix alone saves of a step that takes `step_ns`; below zero where it makes the step longer."""
    saved = bounded(_replayed(replay, fix) * to_step(replay, step_ns) + fix.formula_ns, fix, step_ns=step_ns)
    return Saving(saved, *saving_range(replay, fix, saved, step_ns=step_ns))


def bounded(saving_ns: float, fix: Fix, *, step_ns: float) -> float:
    """Return a saving that exceeds neither the step nor the time the fix claims to remove."""
    return min(saving_ns, step_ns, step_ns if fix.limit_ns is None else max(0.0, fix.limit_ns))


def to_step(replay: Replay | None, step_ns: float) -> float:
    """Return what to multiply savings by: a replay that takes longer than the step saves too much by as much.

    That happens where the profiler slowed the job beyond what any factor on the host's time explains.
    """
    return min(1.0, step_ns / replay.period_ns) if replay is not None and replay.period_ns else 1.0


def saving_range(replay: Replay | None, fix: Fix, saving_ns: float, *, step_ns: float) -> tuple[float, float]:
    """Return the interval of a saving: the model's own error, the replay's misfit, the profiler's unknown cost."""
    misfit = abs(replay.period_ns - step_ns) if replay is not None and fix.change is not None else 0.0
    half = hypot(max(fix.doubt * abs(saving_ns), _MODEL_ERROR * step_ns), misfit)
    low, high = saving_ns - half, saving_ns + half
    if replay is not None and fix.change is not None and not replay.factor_identified:
        for other in _with_other_factors(replay):
            saved = _saved(other, fix.change)
            if saved is not None:
                within = bounded(saved * to_step(replay, step_ns) + fix.formula_ns, fix, step_ns=step_ns)
                low, high = min(low, within), max(high, within)
    if saving_ns < 0:
        return low, high
    return max(0.0, low), max(saving_ns, min(high, step_ns))


def _replayed(replay: Replay | None, fix: Fix) -> float:
    if replay is None or fix.change is None:
        return 0.0
    return replay.period_ns - fix.change(replay).period_ns


@once_per_record
def _with_other_factors(replay: Replay) -> tuple[Replay, ...]:
    """Return the replay as it would be if the profiler cost other shares of the host's time.

    The run itself, where the limits leave its own factor, widens no interval around what it saves.
    """
    factors = (float(np.clip(replay.host_factor * times, 0.3, 1.0)) for times in _OTHER_FACTORS)
    return tuple(with_factor(replay, factor) for factor in factors if factor != replay.host_factor)


def _saved(replay: Replay, change: Change) -> float | None:
    try:
        return replay.period_ns - change(replay).period_ns
    except CircularWaits:
        return None


# Predicted step time with several changes.


@dataclass(frozen=True)
class Prediction:
    """The step with some changes made."""

    step_ns: float
    low_ns: float
    high_ns: float
    #: the replay without the changes
    baseline_ns: float
    #: of the ranks that recorded the replayed steps
    rank_step_ns: dict[int, float]
    changes: tuple[str, ...]


def predict(
    replay: Replay, changes: Sequence[tuple[str, Fix]], *, doubt: float | None = None, step_ns: float | None = None
) -> Prediction:
    """Return the step of a run with all these changes, applied in order.

    Where the replay takes longer than the step (`step_ns`) it is brought to it, and savings with it.
    """
    whole_ns = step_ns or replay.period_ns
    all_of_them = together([fix for _, fix in changes], doubt=doubt)
    if all_of_them.change is not None:
        all_of_them = replace(all_of_them, change=once_per_record(all_of_them.change))  # asked twice of the same run
    saving = saving_of(replay, all_of_them, step_ns=whole_ns)
    scale = to_step(replay, whole_ns)
    baseline_ns = replay.period_ns * scale
    by_rank = _by_rank(replay if all_of_them.change is None else all_of_them.change(replay))
    return Prediction(
        step_ns=max(0.0, baseline_ns - saving.ns),
        low_ns=max(0.0, baseline_ns - saving.high_ns),
        high_ns=max(0.0, baseline_ns - saving.low_ns),
        baseline_ns=baseline_ns,
        rank_step_ns={rank: max(0.0, ns * scale - all_of_them.formula_ns) for rank, ns in by_rank.items()},
        changes=tuple(name for name, _ in changes),
    )


def _by_rank(replay: Replay) -> dict[int, float]:
    graph = replay.graph
    ends = step_ends(graph, end_times(graph, with_host_factor(graph, replay.host_factor)))
    half, last = steady_steps(graph)
    per_step = (ends[:, last] - ends[:, half]) / max(last - half, 1) + replay.recurring.total_ns
    ranks = zip(replay.shared.run.ranks, replay.programs, per_step.tolist(), strict=True)
    return {rank.rank: ns for rank, program, ns in ranks if len(program)}
