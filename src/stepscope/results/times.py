"""How sure is a benchmark's step time? Interval of the median, and every reason to doubt it, with what to do.

A doubt is evidence and remedy, as in pyperf: a measurement that is not steady is shown, and says so.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, isnan, nan

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.stats.bootstrap import difference, interval
from stepscope.stats.robust import mad_sigma, slow_start
from stepscope.units import NS_PER_MS

_SPREAD_PCT = 10.0
_RUNS_APART_PCT = 5.0
_INTERVAL_PCT = 5.0
_OUTLIER = 2.0
_MIN_STEPS_TO_JUDGE = 20

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Doubt:
    """A reason not to trust a step time."""

    evidence: str
    remedy: str


@dataclass(frozen=True)
class BenchTimes:
    """The step time of one series over all its runs."""

    num_runs: int
    num_steps: int
    mean_ns: int
    std_ns: int
    median_ns: int
    low_ns: int
    #: 95 % interval of the median
    high_ns: int
    #: measured steps at the start of a run that still belong to the warm-up, in the worst run
    slow_steps: int
    doubts: tuple[Doubt, ...]

    @property
    def steady(self) -> bool:
        """Return whether nothing speaks against the measurement."""
        return not self.doubts


def bench_times(samples_ms: Sequence[Sequence[float]], *, warmup_steps: int = 0) -> BenchTimes | None:
    """Return the step time of a series' runs, None where nothing was measured."""
    runs = [np.asarray(run, float) for run in samples_ms if len(run)]
    if not runs:
        return None
    every = np.concatenate(runs)
    middle_ms = float(np.median(every))
    low_ms, high_ms = _interval_ms(runs, middle_ms)
    found = BenchTimes(
        num_runs=len(runs),
        num_steps=len(every),
        mean_ns=_ns(every.mean()),
        std_ns=_ns(every.std(ddof=1)) if len(every) > 1 else 0,
        median_ns=_ns(middle_ms),
        low_ns=_ns(low_ms),
        high_ns=_ns(high_ms),
        slow_steps=max(slow_start(run) for run in runs),
        doubts=(),
    )
    return replace(found, doubts=tuple(_doubts(found, runs, warmup_steps, middle_ms, (high_ms - low_ms) / 2)))


def ratio(samples_ms: Sequence[Sequence[float]], reference_ms: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return how many times as long as the reference steps take, with its 95 % interval, nan without a run of both.

    Runs are interleaved: those of the same number are divided, so that what slows a whole run of both cancels.
    """
    if samples_ms is reference_ms:
        return 1.0, 1.0, 1.0
    pairs = [
        (np.asarray(a, float), np.asarray(b, float))
        for a, b in zip(samples_ms, reference_ms, strict=False)
        if len(a) and len(b)
    ]
    if not pairs:
        return nan, nan, nan
    ours, theirs = zip(*pairs, strict=True)
    found = difference(theirs, ours, statistic=_log_median, paired=True)
    if not isnan(found.low):
        return exp(found.change), exp(found.low), exp(found.high)
    (low, high), (other_low, other_high) = _range(ours), _range(theirs)
    return exp(found.change), low / other_high, high / other_low


def _interval_ms(runs: Sequence[Floats], middle_ms: float) -> tuple[float, float]:
    value, low, high = interval(runs, statistic=_log_median)
    return _range(runs) if isnan(low) else (middle_ms * exp(low - value), middle_ms * exp(high - value))


def _ns(time_ms: float) -> int:
    return round(float(time_ms) * NS_PER_MS)


def _log_median(rows: Floats) -> Floats:
    return np.asarray(np.log(np.median(rows, axis=-1)))


def _range(runs: Sequence[Floats]) -> tuple[float, float]:
    every = np.concatenate(runs)
    return float(every.min()), float(every.max())


def _doubts(
    found: BenchTimes, runs: Sequence[Floats], warmup_steps: int, middle_ms: float, half_ms: float
) -> list[Doubt]:
    every = np.concatenate(runs)
    middles = [float(np.median(run)) for run in runs]
    spread_pct = 100 * mad_sigma(every) / middle_ms
    apart_pct = 100 * (max(middles) / min(middles) - 1)
    half_pct = 100 * half_ms / middle_ms
    doubts = []
    if len(every) < _MIN_STEPS_TO_JUDGE:
        doubts.append(Doubt(f"only {len(every)} steps were measured", "measure more steps or runs"))
    if found.slow_steps:
        more = warmup_steps + 2 * found.slow_steps
        doubts.append(
            Doubt(
                f"a run's first {found.slow_steps} measured steps are slower, try {more} warm-up steps",
                "the warm-up was too short: more --warmup-epochs",
            )
        )
    if spread_pct > _SPREAD_PCT:
        doubts.append(
            Doubt(f"steps vary by {spread_pct:.0f} % (robust sigma)", "quiet the machine, or measure more steps")
        )
    if apart_pct > _RUNS_APART_PCT:
        doubts.append(
            Doubt(f"runs differ by {apart_pct:.0f} % in their medians", "quiet the machine, or measure more runs")
        )
    if half_pct > _INTERVAL_PCT:
        doubts.append(Doubt(f"the median is known to +- {half_pct:.0f} % only", "measure more runs"))
    if every.max() > _OUTLIER * middle_ms:
        doubts.append(
            Doubt(
                f"the slowest step took {every.max() / middle_ms:.1f} times the median",
                "look at that step: garbage collection, checkpointing, another job",
            )
        )
    return doubts
