"""Find the best of ordered sizes without trying all of them: coarse first, then uphill and downhill from the best.

    sizes    1  2  3  5  8  12  18  25 ...      larger: fewer messages, so faster; larger still: less overlap, so slower
    coarse   x        x         x       ...     every third and both ends
    refine         x  X  x                      the best one's neighbours, until none is better

Sizes are only compared within one round, in which they take turns: a machine that is slower in a later round is slower
for all of them. Standard library only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SIZES_MB = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 25.0, 35.0, 50.0, 75.0, 100.0, 150.0, 250.0)
_COARSE = 3

# places in the list of sizes -> their times, measured in turns
Times = Callable[[Sequence[int]], Sequence[float]]


@dataclass(frozen=True)
class SearchResult:
    """Where a search ended."""

    best: int
    tried: tuple[int, ...]
    #: time over that of the best one, by way of the rounds in which both took part
    ratios: dict[int, float]


def search(count: int, times_of: Times) -> SearchResult:
    """Return the place of the best of `count` sizes."""
    first = [*range(0, count - 1, _COARSE), count - 1] if count > 1 else [0]
    best, ratios = _round(first, times_of)
    while True:
        near = [place for place in (best - 1, best + 1) if 0 <= place < count and place not in ratios]
        if not near:
            return SearchResult(best, tuple(sorted(ratios)), ratios)
        better, latest = _round(sorted([best, *near]), times_of)
        earlier = {place: ratio * latest[best] for place, ratio in ratios.items()}
        best, ratios = better, {**earlier, **latest}


def _round(places: Sequence[int], times_of: Times) -> tuple[int, dict[int, float]]:
    times = dict(zip(places, times_of(places), strict=True))
    best = min(times, key=lambda place: times[place])
    return best, {place: time / times[best] for place, time in times.items()}
