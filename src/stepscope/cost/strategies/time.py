"""Where collective times come from: a calibration, with its interval, or a fabric's links, without."""

from collections.abc import Callable, Iterable

from stepscope.cost.collectives.calibration import Calibration
from stepscope.cost.collectives.closed_form import Fabric, fastest
from stepscope.cost.strategies.traffic import Traffic
from stepscope.dataclass import dataclass


@dataclass(frozen=True)
class CommTime:
    """A predicted time of communication; without bounds where links were given and nothing was measured."""

    time_ns: float
    low_ns: float | None
    high_ns: float | None
    how: str


CollectiveTimes = Callable[[str, float, int], CommTime]
"""the time of (operation, full bytes, ranks)"""


def times_of(source: Calibration | Fabric) -> CollectiveTimes:
    """Return a function that says what a collective takes."""

    def calibrated(op: str, size_bytes: float, ranks: int) -> CommTime:
        assert isinstance(source, Calibration)
        found = source.predict(op, size_bytes=size_bytes, world_size=ranks)
        return CommTime(found.time_ns, found.low_ns, found.high_ns, found.how)

    def by_links(op: str, size_bytes: float, ranks: int) -> CommTime:
        assert isinstance(source, Fabric)
        choice = fastest(op, size_bytes=size_bytes, ranks=ranks, fabric=source)
        return CommTime(choice.time_ns, None, None, f"{choice.algorithm} on the given links")

    return calibrated if isinstance(source, Calibration) else by_links


def total_time(traffic: Iterable[Traffic], times: CollectiveTimes) -> CommTime:
    """Return the time of the traffic one after another; its bounds are the sums of the bounds."""
    total, low, high = 0.0, 0.0, 0.0
    known, how = True, set()
    for t in traffic:
        one = times(t.op, t.size_bytes, t.ranks)
        total += t.count * one.time_ns
        how.add(one.how)
        if one.low_ns is None or one.high_ns is None:
            known = False
        else:
            low, high = low + t.count * one.low_ns, high + t.count * one.high_ns
    return CommTime(total, low if known else None, high if known else None, "; ".join(sorted(how)))
