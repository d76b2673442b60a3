"""Which series of a benchmark to take: the simplest, unless another one is clearly faster."""

from collections.abc import Sequence

from stepscope.dataclass import dataclass
from stepscope.results.times import bench_times, ratio

Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Choice:
    """What to take, and by how much it differs from the other that comes next."""

    name: str
    #: the simpler one that it is clearly faster than, else the fastest of the others; None without another
    against: str | None
    #: its time over the other's, with the 95 % interval
    over: float | None
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """Return whether it is clearly faster than the other."""
        return self.high is not None and self.high < 1


def simplest_unless_slower(series: Sequence[tuple[str, Runs]]) -> Choice | None:
    """Return the choice among series from simple to complicated; None where nothing was measured.

    >>> simplest_unless_slower([("ddp", [[10.0] * 30] * 3), ("zero3", [[10.0] * 30] * 3)]).name
    'ddp'
    """
    medians = {name: times.median_ns for name, runs in series if (times := bench_times(runs))}
    timed = [(name, runs) for name, runs in series if name in medians]
    if not timed:
        return None
    chosen, beaten = timed[0], None
    for other in timed[1:]:
        if ratio(other[1], chosen[1])[2] < 1:
            chosen, beaten = other, beaten or chosen
    rest = sorted((pair for pair in timed if pair[0] != chosen[0]), key=lambda pair: medians[pair[0]])
    against = beaten or (rest[0] if rest else None)
    if against is None:
        return Choice(chosen[0], None, None, None, None)
    return Choice(chosen[0], against[0], *ratio(chosen[1], against[1]))
