"""What did a variant of a sweep win? From two rows of the results."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median, stdev
from typing import Any

from stepscope.analyze.bench_times import ratio
from stepscope.student_t import t_quantile

_CONFIDENCE = 0.95
_MATTERS = 1.05

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Gain:
    """How many times as fast as the first variant, per sample, with the 95 % interval."""

    speedup: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Return whether it is faster beyond the noise."""
        return self.low > 1

    @property
    def slower(self) -> bool:
        """Return whether it is slower beyond the noise."""
        return self.high < 1

    @property
    def equal(self) -> bool:
        """Return whether the noise is larger than the difference."""
        return not self.faster and not self.slower

    @property
    def undecided(self) -> bool:
        """Return whether the noise hides differences that would matter, either way."""
        return self.equal and (self.low < 1 / _MATTERS or self.high > _MATTERS)


def gain(row: Row, reference: Row) -> Gain:
    """Return the gain of a row over another.

    Runs are interleaved, so those of the same number are compared with each other: what slowed the machine in one round
    slowed both. The interval is Student's, over rounds; with one round it is that of resampled steps.
    """
    per_sample = reference["summary"]["samples_per_step"] / row["summary"]["samples_per_step"]
    pairs = list(zip(reference["samples_ms"], row["samples_ms"], strict=False))
    if len(pairs) == 1:
        middle, low, high = ratio(reference["samples_ms"], row["samples_ms"])
        return Gain(middle / per_sample, low / per_sample, high / per_sample)
    logs = [log(median(theirs) / median(ours) / per_sample) for theirs, ours in pairs]
    reach = t_quantile(_CONFIDENCE, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return Gain(exp(fmean(logs)), exp(fmean(logs) - reach), exp(fmean(logs) + reach))
