"""Which ranks make the others wait, from each rank's own time: what it needs for a step when it waits for nobody.

A plain z-score of n ranks never exceeds sqrt(n - 1), so that over a threshold of 2 it cannot fire with five ranks or
fewer. So each rank is held against the others alone:

    late  = own - median(others)
    noise = max(1.4826 x MAD(others), 2 % of their median)
    score = late / noise                  a straggler has score >= threshold and own >= 1.1 x mean(others)

Standard library only: the job scores itself while it runs, the desk scores what it left.
"""

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_WINDOW_STEPS = 100
DEFAULT_SCORE = 2.0
DEFAULT_SLOWDOWN = 1.10
NOISE_SHARE = 0.02
"""own times of equal ranks differ by this share of a step at least, so a smaller spread is luck"""
_SIGMA_OF_MAD = 1.4826


@dataclass(frozen=True)
class RankScore:
    """One rank beside the others."""

    rank: int
    own_ms: float
    late_ms: float
    """own time beyond the median of the others'; negative where it is faster"""
    slowdown: float
    """own time / mean own time of the others"""
    score: float
    straggler: bool


def rank_scores(
    own_ms: Mapping[int, float], *, threshold: float = DEFAULT_SCORE, slowdown: float = DEFAULT_SLOWDOWN
) -> list[RankScore]:
    """Return the score of every rank, the latest first; none with fewer than two ranks.

    >>> [s.rank for s in rank_scores({0: 10.0, 1: 10.2, 2: 14.0}) if s.straggler]
    [2]
    """
    from statistics import fmean, median  # only where ranks are compared: it takes long to import

    scores = []
    for rank, own in own_ms.items():
        others = [value for other, value in own_ms.items() if other != rank]
        if not others or median(others) <= 0:
            continue
        late = own - median(others)
        sigma = _SIGMA_OF_MAD * median(abs(value - median(others)) for value in others)
        score = late / max(sigma, NOISE_SHARE * median(others))
        times = own / fmean(others)
        scores.append(RankScore(rank, own, late, times, score, score >= threshold and times >= slowdown))
    return sorted(scores, key=lambda s: -s.late_ms)
