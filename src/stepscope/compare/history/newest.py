"""Is the newest run of a configuration slower than runs of it usually are?

The interval is that of one more run like those before it, on the logarithm of their step times:
    exp(mean +- t(97.5 %, n - 1) * s * sqrt(1 + 1/n))
A newest run above it is a regression, below it an improvement; with fewer than four runs before it nothing is said.
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

from stepscope.compare.history.row import HistoryRow
from stepscope.dataclass import dataclass
from stepscope.stats.student_t import t_quantile

MIN_BEFORE = 4
CONFIDENCE = 0.95
_MIN_SPREAD = 0.002
"""of step times on the logarithm: equal to the digit is chance"""


@dataclass(frozen=True)
class NewestRun:
    """The newest run of a configuration beside those before it."""

    config: str
    run: str
    commit: str | None
    step_ms: float
    before: int
    """runs before it"""
    usual_ms: float | None
    low_ms: float | None
    high_ms: float | None
    """interval of one more such run; None with too few runs before it"""
    change_pct: float | None
    verdict: str
    """slower, faster, as usual, or unknown"""


def newest_runs(rows: Sequence[HistoryRow]) -> list[NewestRun]:
    """Return the newest run of each configuration that has a step time, those that changed first."""
    by_config: dict[tuple[str, str | None], list[HistoryRow]] = {}
    for row in in_time(rows):
        if row.step_ms is not None and row.step_ms > 0:
            by_config.setdefault((row.config, row.step_source), []).append(row)
    order = {"slower": 0, "faster": 1, "as usual": 2, "unknown": 3}
    return sorted(
        (_newest(several) for several in by_config.values()), key=lambda one: (order[one.verdict], one.config)
    )


def in_time(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    """Return rows from the oldest to the newest, those of unknown time first and by name."""
    return sorted(rows, key=lambda row: (row.created or "", row.run))


def _newest(rows: Sequence[HistoryRow]) -> NewestRun:
    last = rows[-1]
    before = [row.step_ms for row in rows[:-1] if row.step_ms]
    assert last.step_ms is not None
    usual = exp(fmean(map(log, before))) if before else None
    change = None if usual is None else 100 * (last.step_ms / usual - 1)
    low, high = interval_of_one_more(before)
    verdict = "unknown"
    if low is not None and high is not None:
        verdict = "slower" if last.step_ms > high else "faster" if last.step_ms < low else "as usual"
    return NewestRun(last.config, last.run, last.commit, last.step_ms, len(before), usual, low, high, change, verdict)


def interval_of_one_more(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return between which values one more of the same lies in 95 of 100 cases, None with too few of them."""
    if len(values) < MIN_BEFORE:
        return None, None
    logs = [log(value) for value in values]
    reach = t_quantile(CONFIDENCE, len(logs) - 1) * max(stdev(logs), _MIN_SPREAD) * sqrt(1 + 1 / len(logs))
    return exp(fmean(logs) - reach), exp(fmean(logs) + reach)
