"""Which ranks are late, from step logs alone: no profiler, while the job runs.

A rank's own time is its step less the time it waited for the others' gradients (region `gradient_sync`). After the wait
all ranks look equal; before it the late one shows. The score is that of `stragglers`: leave-one-out over the last 100
steps, against the spread of the others, and at least 10 % above their mean. Two or three ranks show no spread among
the others, so the lateness has to exceed its own scatter from step to step as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyze.stragglers import DEFAULT_SCORE, DEFAULT_SLOWDOWN, DEFAULT_WINDOW_STEPS
from stepscope.run.step_log import StepLog
from stepscope.stats import mad_sigma, slow_start

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
    typical = np.median(own, axis=1)
    found = []
    for i, log in enumerate(logs):
        others = np.delete(typical, i)
        late_ns = float(typical[i] - np.median(others))
        by_step = own[i] - np.median(np.delete(own, i, axis=0), axis=0)
        noise = max(mad_sigma(others), _NOISE_SHARE * float(np.median(others)), mad_sigma(by_step) / DEFAULT_SCORE)
        score, over = late_ns / noise if noise else 0.0, float(typical[i] / others.mean())
        if score >= threshold and over >= slowdown:
            found.append(LateRank(log.rank, late_ns / 1e6, round(score, 2), over))
    return sorted(found, key=lambda late: -late.late_ms)


def own_ns(logs: Sequence[StepLog], *, window_steps: int) -> Floats | None:
    """Return own time per rank and step, of the last steps after warm-up; None where ranks have no steps in common."""
    if not logs:
        return None
    length = min(len(log) for log in logs)
    if not length:
        return None
    own = np.array([(log.dur_ns - np.nan_to_num(log.column(WAITING)))[:length] for log in logs], float)
    settled = max(slow_start(row) for row in own)
    return np.asarray(own[:, settled:][:, -window_steps:])
