"""How sure is each loss of the waterfall? About 95 %, in points of the peak.

Two doubts add up. Steps differ: two standard errors of the mean over the recorded steps, and over ranks as far as
ranks were not recorded (those that all were are no sample: their mean is exact). And the profiler's cost was taken
from the host's losses in an order that is a model: what went from one of them may belong to another, at most as much
as that other holds; half of it counts.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.attribution.budget import RankBudget
from stepscope.analyze.host.calls import Floats, Mask

_STANDARD_ERRORS = 2.0
_DOUBT = 0.5


def loss_errors(
    budgets: Sequence[RankBudget],
    measured: Sequence[Floats],
    *,
    corrected_ns: Floats,
    host: Mask,
    num_ranks: int,
) -> Floats | None:
    """Return the error of each loss, None where a rank has fewer than two complete steps.

    `measured` has the losses of each rank's periods in ns, `corrected_ns` those of the run's step with the profiler
    taken out; `host` marks the losses that a slower host makes.
    """
    used = [np.flatnonzero(budget.periods.complete) for budget in budgets]
    if min(len(use) for use in used) < 2:
        return None
    shares = [
        100 * losses[use] / budget.periods.dur_ns[use, None]
        for budget, losses, use in zip(budgets, measured, used, strict=True)
    ]
    typical = [losses[budget.periods.typical].mean(axis=0) for budget, losses in zip(budgets, measured, strict=True)]
    doubt_ns = _correction_doubt(np.mean(typical, axis=0), corrected_ns, host)
    return _spread(shares, num_ranks) + 100 * doubt_ns / corrected_ns.sum()


def _spread(shares: Sequence[Floats], num_ranks: int) -> Floats:
    n = len(shares)
    of_steps = np.mean([share.var(axis=0, ddof=1) / len(share) for share in shares], axis=0) / n
    means = np.array([share.mean(axis=0) for share in shares])
    of_ranks = means.var(axis=0, ddof=1) / n if n > 1 else np.zeros_like(of_steps)
    spread: Floats = _STANDARD_ERRORS * np.sqrt(of_steps + (1 - n / num_ranks) * of_ranks)
    return spread


def _correction_doubt(before: Floats, after: Floats, host: Mask) -> Floats:
    """Return how much of each loss may belong to another one, or another's to it."""
    taken = np.maximum(before - after, 0) * host
    left = np.maximum(after, 0) * host
    misplaced = np.minimum(taken, left.sum() - left) + np.minimum(left, taken.sum() - taken)
    doubt: Floats = _DOUBT * np.where(host & (after <= before), misplaced, np.abs(after - before))
    return doubt
