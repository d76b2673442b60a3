"""Which ranks are late, from step logs alone: no profiler, while the job runs.

A rank's own time is its step less the time it waited for the others' gradients (region `gradient_sync`). After the wait
all ranks look equal; before it the late one shows. Where steps are short the wait is measured in a few of them only,
each rank choosing for itself: in the others the own time is unknown, not the whole step. The score is that of
`stragglers`: leave-one-out over the last 100 known steps, against the spread of the others, and at least 10 % above
their mean. Two or three ranks show no spread among the others, so the lateness has to exceed its own scatter from step
to step as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ranks.stragglers import DEFAULT_SCORE, DEFAULT_SLOWDOWN, DEFAULT_WINDOW_STEPS
from stepscope.run.step_log import StepLog
from stepscope.stats.robust import mad_sigma, slow_start

Floats = npt.NDArray[np.float64]

WAITING = "regions.gradient_sync.ns"
_NOISE_SHARE = 0.02
"""own times of equal ranks differ by this share of a step at least"""


@dataclass(frozen=True)
class LateRank:
    """A rank whose own time stands out."""

    rank: int
    late_ms: float
    """own time beyond the others' median, per step"""
    score: float
    slowdown: float
    """own time over the mean of the others'"""


def late_ranks(
    logs: Sequence[StepLog],
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    threshold: float = DEFAULT_SCORE,
    slowdown: float = DEFAULT_SLOWDOWN,
) -> list[LateRank]:
    """Return the ranks that are late over the last steps that all ranks have, the latest first."""
    own = own_ns(logs, window_steps=window_steps)
    if own is None or len(own) < 2:
        return []
    typical = np.nanmedian(own, axis=1)
    found = []
    for i, log in enumerate(logs):
        others = np.delete(typical, i)
        late_ns = float(typical[i] - np.median(others))
        scatter = mad_sigma(_by_step(own, typical, i))
        noise = max(mad_sigma(others), _NOISE_SHARE * float(np.median(others)), scatter / DEFAULT_SCORE)
        score, over = late_ns / noise if noise else 0.0, float(typical[i] / others.mean())
        if score >= threshold and over >= slowdown:
            found.append(LateRank(log.rank, late_ns / 1e6, round(score, 2), over))
    return sorted(found, key=lambda late: -late.late_ms)


def own_ns(logs: Sequence[StepLog], *, window_steps: int) -> Floats | None:
    """Return own time per rank and step, NaN where unknown, of the last steps after warm-up that hold `window_steps`
    known ones of every rank; None where ranks have no steps in common.
    """
    length = min((len(log) for log in logs), default=0)
    if not length:
        return None
    settled = max(slow_start(log.dur_ns[:length]) for log in logs)
    own = np.array([_own_ns(log)[:length] for log in logs], float)[:, settled:]
    known = [np.flatnonzero(~np.isnan(row)) for row in own]
    if not all(len(steps) for steps in known):
        return None
    first = min(int(steps[-window_steps:][0]) for steps in known)
    return np.asarray(own[:, first:])


def _own_ns(log: StepLog) -> Floats:
    """Return each step less its wait; a rank that never waits has none to take off. Profiled steps are not known,
    unless all are.
    """
    waited = log.column(WAITING)
    own = log.dur_ns - (np.zeros(len(log)) if np.isnan(waited).all() else waited)
    return np.where(log.undisturbed, own, np.nan) if log.undisturbed.any() else np.asarray(own, float)


def _by_step(own: Floats, typical: Floats, rank: int) -> Floats:
    """Return how late a rank is in each step, against the others there, or as they usually are where unknown."""
    others = np.delete(own, rank, axis=0)
    usual = np.where(np.isnan(others), np.delete(typical, rank)[:, None], others)
    late = own[rank] - np.median(usual, axis=0)
    return np.asarray(late[~np.isnan(late)])
