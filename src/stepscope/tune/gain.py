"""What does a setting save, and could that be chance? From the trials of each round, with and without it.

    gain = 1 - exp(mean of log(with / without))        over rounds; what slows a whole round cancels
    interval: Student's t over the rounds, at a confidence of 1 - 5 % / (2 x settings tried) (Bonferroni)

So that at most one of twenty jobs in which nothing helps has any setting whose interval lies above 0. Twice, because a
setting that is left undecided is looked at once more, after more rounds.
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, median, stdev

from stepscope.dataclass import dataclass
from stepscope.stats.student_t import t_quantile

MAX_FALSE = 0.05
MIN_ROUNDS = 3
LOOKS = 2
"""at a setting: after the rounds that were asked for, and after more of them"""


@dataclass(frozen=True)
class Gain:
    """The share of the step that a setting saves; negative where it costs."""

    share: float
    low: float
    high: float
    rounds: int
    typical: float
    """share by the median over rounds, which one disturbed round does not move"""

    @property
    def beyond_chance(self) -> bool:
        """Return whether the whole interval is a gain."""
        return self.low > 0

    @property
    def slower(self) -> bool:
        """Return whether the whole interval is a loss."""
        return self.high < 0


def gain(base_ms: Sequence[float], with_ms: Sequence[float], *, tried: int) -> Gain | None:
    """Return what a setting saves by pairs of trials of the same round; None with fewer than three of them.

    >>> found = gain([100.0, 104.0, 98.0], [50.0, 51.0, 50.0], tried=1)
    >>> round(found.share, 2), found.beyond_chance
    (0.5, True)
    """
    ratios = [log(b / a) for a, b in zip(base_ms, with_ms, strict=True)]
    if len(ratios) < MIN_ROUNDS:
        return None
    middle = fmean(ratios)
    width = t_quantile(1 - MAX_FALSE / (LOOKS * max(1, tried)), len(ratios) - 1) * stdev(ratios) / sqrt(len(ratios))
    typical = 1 - exp(median(ratios))
    return Gain(1 - exp(middle), 1 - exp(middle + width), 1 - exp(middle - width), len(ratios), typical)
