"""Step times of benchmarks: the interval of the median, every reason to doubt it, ratios, and scaling.

A doubt is evidence and remedy, as in pyperf: a measurement that is not steady is shown as such.

strong scaling   the same work shared out:       T1 / (N x TN)
weak scaling     the same work for every rank:   T1 / TN
"""

from collections.abc import Sequence
from math import exp, inf, isnan, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.records import dataclass
from stepscope.stats.change import Change, paired
from stepscope.stats.robust import interval, mad_sigma, slow_start
from stepscope.units import NS_PER_MS, ms

_SPREAD_PCT = 10.0
_RUNS_APART_PCT = 5.0
_INTERVAL_PCT = 5.0
_OUTLIER = 2.0
_MIN_STEPS_TO_JUDGE = 20

Floats = npt.NDArray[np.float64]
Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Doubt:
    """A reason not to trust a step time."""

    evidence: str
    remedy: str


@dataclass(frozen=True)
class BenchTimes:
    """The step time of one series over all its runs."""

    median_ns: int
    low_ns: int
    #: 95 % interval of the median
    high_ns: int
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
    middle_ms = float(np.median(np.concatenate(runs)))
    low_ms, high_ms = _interval_ms(runs, middle_ms)
    doubts = _doubts(runs, warmup_steps, middle_ms, (high_ms - low_ms) / 2)
    median, low, high = (round(t * NS_PER_MS) for t in (middle_ms, low_ms, high_ms))
    return BenchTimes(median, low, high, tuple(doubts))


def over(samples_ms: Runs, reference_ms: Runs, *, tests: int = 1) -> Change:
    """Return how many times as long as the reference steps take, by pairs of runs; nan without a pair."""
    found = paired(reference_ms, samples_ms, tests=tests)
    return found or Change(nan, nan, nan, None, None, 0)


def _interval_ms(runs: Sequence[Floats], middle_ms: float) -> tuple[float, float]:
    every = np.concatenate(runs)
    value, low, high = interval(runs, statistic=_log_median)
    low_ms, high_ms = (0.0, inf) if isnan(low) else (middle_ms * exp(low - value), middle_ms * exp(high - value))
    # two or three runs that differ have an interval by Student's t that is wider than all of their steps
    return max(low_ms, float(every.min())), min(high_ms, float(every.max()))


def _log_median(rows: Floats) -> Floats:
    return np.asarray(np.log(np.median(rows, axis=-1)))


def _doubts(runs: Sequence[Floats], warmup_steps: int, middle_ms: float, half_ms: float) -> list[Doubt]:
    every = np.concatenate(runs)
    # measured steps at the start of a run that still belong to the warm-up, in the worst run
    slow = max(slow_start(run) for run in runs)
    middles = [float(np.median(run)) for run in runs]
    spread_pct = 100 * mad_sigma(every) / middle_ms
    apart_pct = 100 * (max(middles) / min(middles) - 1)
    half_pct = 100 * half_ms / middle_ms
    more = warmup_steps + 2 * slow
    slowest = every.max() / middle_ms
    known = (
        (len(every) < _MIN_STEPS_TO_JUDGE, f"only {len(every)} steps were measured", "measure more steps or runs"),
        (
            slow > 0,
            f"a run's first {slow} measured steps are slower, try {more} warm-up steps",
            "the warm-up was too short: more --warmup-epochs",
        ),
        (
            spread_pct > _SPREAD_PCT,
            f"steps vary by {spread_pct:.0f} % (robust sigma)",
            "quiet the machine, or measure more steps",
        ),
        (
            apart_pct > _RUNS_APART_PCT,
            f"runs differ by {apart_pct:.0f} % in their medians",
            "quiet the machine, or measure more runs",
        ),
        (half_pct > _INTERVAL_PCT, f"the median is known to +- {half_pct:.0f} % only", "measure more runs"),
        (
            slowest > _OUTLIER,
            f"the slowest step took {slowest:.1f} times the median",
            "check that step: garbage collection, checkpointing, another job",
        ),
    )
    return [Doubt(evidence, remedy) for doubtful, evidence, remedy in known if doubtful]


def scaling(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each row's efficiency with its 95 % interval, and the speed-up of the whole job's throughput.

    They are against the smallest world size of the mode.
    """
    found = []
    for mode in dict.fromkeys(row["config"]["mode"] for row in rows):
        mine = sorted((r for r in rows if r["config"]["mode"] == mode), key=lambda r: int(r["config"]["world_size"]))
        found += [_scaled(row, mine[0]) for row in mine]
    return found


def _scaled(row: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    mode, ranks = row["config"]["mode"], int(row["config"]["world_size"])
    more = ranks / int(first["config"]["world_size"])
    found = over(row["samples_ms"], first["samples_ms"])
    share = more if mode == "strong" else 1.0
    times = bench_times(row["samples_ms"])
    return {
        "mode": mode,
        "world_size": ranks,
        "median_ms": ms(times.median_ns) if times else None,
        "speedup": (1.0 if mode == "strong" else more) / found.ratio,
        "efficiency": 1 / (share * found.ratio),
        "low": 1 / (share * found.high),
        "high": 1 / (share * found.low),
    }
