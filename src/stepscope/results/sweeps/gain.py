"""What did a variant of a sweep win? From two rows of the results."""

from collections.abc import Mapping
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.results.times import ratio

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
    slowed both.
    """
    per_sample = _samples(reference) / _samples(row)
    middle, low, high = ratio(reference["samples_ms"], row["samples_ms"])
    return Gain(middle / per_sample, low / per_sample, high / per_sample)


def _samples(row: Row) -> float:
    return row["summary"]["samples_per_step"] or 1.0
