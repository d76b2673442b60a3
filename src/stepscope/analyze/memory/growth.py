"""Does memory grow from step to step? A leak shows as a slope that chance does not give."""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.step.steadiness import SIGNIFICANT
from stepscope.dataclass import dataclass
from stepscope.stats.middle import median
from stepscope.stats.robust import trend

_SETTLING_SHARE = 0.1
_SETTLING_STEPS = 3
"""the first steps create optimizer state and warm the cache; on long runs a tenth of them is left out"""
_MIN_SHARE = 0.005
"""growth over the observed steps that is less than this share of the level is no leak worth telling"""


@dataclass(frozen=True)
class Growth:
    """How an amount of memory moves over the steps."""

    bytes_per_step: float
    low_bytes_per_step: float
    high_bytes_per_step: float
    """95 % interval"""
    p_value: float
    total_bytes: float
    """over the steps looked at, by the slope"""
    num_steps: int
    leaks: bool
    """significant, upwards, and at least half a percent of the level"""


def growth(steps: npt.ArrayLike, amounts: npt.ArrayLike) -> Growth | None:
    """Return the growth of an amount sampled at the ends of steps; NaN where a step has no sample. None below eight."""
    x, y = np.asarray(steps, float), np.asarray(amounts, float)
    known = np.isfinite(y)
    x, y = x[known], y[known]
    settled = min(max(_SETTLING_STEPS, int(_SETTLING_SHARE * len(x))), len(x) // 3)
    x, y = x[settled:], y[settled:]
    found = trend(x, y)
    if found is None:
        return None
    total = found.slope * float(x[-1] - x[0])
    significant = found.p_value < SIGNIFICANT and found.low > 0
    return Growth(
        bytes_per_step=found.slope,
        low_bytes_per_step=found.low,
        high_bytes_per_step=found.high,
        p_value=found.p_value,
        total_bytes=total,
        num_steps=len(x),
        leaks=significant and total >= _MIN_SHARE * median(y),
    )
