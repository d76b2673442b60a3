"""How sure is a benchmark's step time? Interval of the median, and every reason to doubt it, with what to do.

A doubt is evidence and remedy, as in pyperf: a measurement that is not steady is shown, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.stats import mad_sigma, slow_start
from stepscope.stats_bootstrap import block_length

_RESAMPLES = 1000
_SPREAD_PCT = 10.0
_RUNS_APART_PCT = 5.0
_INTERVAL_PCT = 5.0
_OUTLIER = 2.0
_FEW_STEPS = 20

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
    mean_ms: float
    std_ms: float
    median_ms: float
    low_ms: float
    high_ms: float
    """95 % interval of the median"""
    slow_steps: int
    """measured steps at the start of a run that still belong to the warm-up, in the worst run"""
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
    medians = resampled_medians(runs)
    low, high = np.percentile(medians, (2.5, 97.5))
    slow = max(slow_start(run) for run in runs)
    median = float(np.median(every))
    found = BenchTimes(
        num_runs=len(runs),
        num_steps=len(every),
        mean_ms=float(every.mean()),
        std_ms=float(every.std(ddof=1)) if len(every) > 1 else 0.0,
        median_ms=median,
        low_ms=float(min(low, median)),
        high_ms=float(max(high, median)),
        slow_steps=slow,
        doubts=(),
    )
    return BenchTimes(**{**vars(found), "doubts": tuple(_doubts(found, runs, warmup_steps))})


def ratio(samples_ms: Sequence[Sequence[float]], reference_ms: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return median over reference median, with its 95 % interval; runs of the same number belong together.

    Runs are interleaved, so both are resampled by the same runs: what slows a whole run slows both and cancels.
    """
    pairs = [
        (np.asarray(a, float), np.asarray(b, float))
        for a, b in zip(samples_ms, reference_ms, strict=False)
        if len(a) and len(b)
    ]
    if not pairs:
        return float("nan"), float("nan"), float("nan")
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    middle = float(np.median(np.concatenate(ours)) / np.median(np.concatenate(theirs)))
    spread = resampled_medians(ours, seed=1) / resampled_medians(theirs, seed=1)
    low, high = np.percentile(spread, (2.5, 97.5))
    return middle, float(min(low, middle)), float(max(high, middle))


def resampled_medians(runs: Sequence[Floats], *, seed: int = 0) -> Floats:
    """Return medians of resampled runs: runs drawn anew, then blocks of steps in each, for steps depend on each other.

    The same seed draws the same runs whatever the samples, so that two series can be resampled together.
    """
    drawn = np.random.default_rng(seed).integers(len(runs), size=(_RESAMPLES, len(runs)))
    random = np.random.default_rng(seed + 1)
    picked = np.full((*drawn.shape, max(map(len, runs))), np.nan)
    for i, run in enumerate(runs):
        here = drawn == i
        picked[here, : len(run)] = _blocks(run, int(here.sum()), random)
    return np.asarray(np.nanmedian(picked.reshape(_RESAMPLES, -1), axis=1))


def _blocks(run: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return `count` runs as long, put together from blocks of it that are as long as steps depend on each other."""
    length = block_length(run)
    starts = random.integers(len(run), size=(count, -(-len(run) // length)))
    at = (starts[:, :, None] + np.arange(length)) % len(run)
    return run[at.reshape(count, -1)[:, : len(run)]]


def _doubts(found: BenchTimes, runs: Sequence[Floats], warmup_steps: int) -> list[Doubt]:
    every = np.concatenate(runs)
    middles = [float(np.median(run)) for run in runs]
    spread_pct = 100 * mad_sigma(every) / found.median_ms
    apart_pct = 100 * (max(middles) / min(middles) - 1)
    half_pct = 50 * (found.high_ms - found.low_ms) / found.median_ms
    doubts = []
    if len(every) < _FEW_STEPS:
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
    if every.max() > _OUTLIER * found.median_ms:
        doubts.append(
            Doubt(
                f"the slowest step took {every.max() / found.median_ms:.1f} times the median",
                "look at that step: garbage collection, checkpointing, another job",
            )
        )
    return doubts
