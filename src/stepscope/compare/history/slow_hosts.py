"""Which hosts are slow across jobs, and not by chance?

In a job of n hosts that are equal, each is the slowest with probability 1/n. How often one is over many jobs then has a
known distribution (a sum of unequal coins), and a host is named where it was the slowest so often that this happens to
an equal host in less than 1 of 100 histories, corrected for the number of hosts (Holm), and where it costs something:

    at least 3 jobs, p < 0.01 after correction, median slowdown against the other hosts of at least 5 %

Slowness is that of the time before ranks wait for each other; after it all look equal. A host that was slow only with
rank 0 as its single rank is not named: rank 0 often does more.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.compare.history.row import HistoryRow, HostTime
from stepscope.dataclass import dataclass
from stepscope.stats.bootstrap import holm

MAX_P = 0.01
MIN_RUNS = 3
MIN_SLOWDOWN = 1.05


@dataclass(frozen=True)
class HostRecord:
    """One host over all jobs that ran on it and on others."""

    host: str
    runs: int
    slowest: int
    """jobs in which it was the slowest"""
    expected: float
    """the same for a host like all others"""
    p_value: float
    """that an equal host is the slowest at least as often, corrected for the number of hosts"""
    slowdown: float
    """median over jobs, against the other hosts' median"""
    is_slow: bool
    why_not: str | None = None
    """what speaks against naming a host that stands out"""


def host_records(rows: Sequence[HistoryRow]) -> list[HostRecord]:
    """Return every host that shared a job with another one, the most suspicious first."""
    seen: dict[str, list[tuple[HostTime, float, int]]] = {}
    slowest: dict[str, int] = {}
    for times in (row.host_times for row in rows if len(row.host_times) > 1):
        worst = max(times, key=lambda one: one.slowdown)
        slowest[worst.host] = slowest.get(worst.host, 0) + 1
        for one in times:
            others = float(np.median([other.slowdown for other in times if other is not one]))
            seen.setdefault(one.host, []).append((one, one.slowdown / others if others else 1.0, len(times)))
    hosts = sorted(seen)
    p_values = [tail([1 / n for _, _, n in seen[host]], slowest.get(host, 0)) for host in hosts]
    corrected = holm(np.array(p_values, float)).tolist()
    found = [_record(h, seen[h], slowest.get(h, 0), p) for h, p in zip(hosts, corrected, strict=True)]
    return sorted(found, key=lambda one: (not one.is_slow, one.p_value, -one.slowdown, one.host))


def tail(chances: Sequence[float], at_least: int) -> float:
    """Return the probability that at least so many of independent coins with these chances show heads.

    >>> tail([0.5, 0.5, 0.5], 3), tail([0.5, 0.25], 1)
    (0.125, 0.625)
    """
    counts = np.zeros(len(chances) + 1)
    counts[0] = 1.0
    for p in chances:
        counts[1:] = counts[1:] * (1 - p) + counts[:-1] * p
        counts[0] *= 1 - p
    return float(min(1.0, counts[at_least:].sum())) if at_least else 1.0


def _record(host: str, jobs: Sequence[tuple[HostTime, float, int]], slowest: int, p_value: float) -> HostRecord:
    slowdown = float(np.median([ratio for _, ratio, _ in jobs]))
    stands_out = p_value < MAX_P and slowest > 0
    why_not = None
    if stands_out and len(jobs) < MIN_RUNS:
        why_not = f"{len(jobs)} jobs, {MIN_RUNS} are needed"
    elif stands_out and slowdown < MIN_SLOWDOWN:
        why_not = f"less than {100 * (MIN_SLOWDOWN - 1):.0f} % slower"
    elif stands_out and all(one.has_rank_0 for one, _, _ in jobs):
        why_not = "it always had rank 0 as its only rank, which may do more than the others"
    return HostRecord(
        host=host,
        runs=len(jobs),
        slowest=slowest,
        expected=float(sum(1 / n for _, _, n in jobs)),
        p_value=p_value,
        slowdown=slowdown,
        is_slow=stands_out and why_not is None,
        why_not=why_not,
    )
