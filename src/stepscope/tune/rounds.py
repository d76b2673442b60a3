"""Who runs when: every round has one trial of the unchanged job and one of each setting still in, in a turned order.

What the machine does over time then falls on all alike. After two rounds a setting that saved nothing is given up:
that can only take recommendations away, so the intervals of the others hold. One that fails, does not take hold or
changes results is given up at once.
"""

from collections.abc import Mapping, Sequence
from math import log
from statistics import fmean

from stepscope.dataclass import dataclass
from stepscope.tune.agreement import Agreement, agreement
from stepscope.tune.candidates import Candidate
from stepscope.tune.trial import Trial

BASE = "as it is"
GIVE_UP_AFTER = 2


@dataclass(frozen=True)
class Out:
    """Why a setting was given up."""

    why: str
    agreement: Agreement | None = None


def order_of(number: int, names: Sequence[str]) -> list[str]:
    """Return the order of a round: every round begins one further on, every second one goes backwards.

    >>> order_of(0, ["a", "b"]), order_of(1, ["a", "b"])
    (['as it is', 'a', 'b'], ['as it is', 'b', 'a'])
    """
    every = [BASE, *names]
    at = number % len(every)
    turned = [*every[at:], *every[:at]]
    return turned if number % 2 == 0 else turned[::-1]


def why_out(candidate: Candidate, trials: Sequence[Trial], base: Sequence[Trial]) -> Out | None:
    """Return why a setting is out after its trials so far, paired with those of the unchanged job; None to go on."""
    last, good = trials[-1], [t for t in base if t.failed is None]
    if last.failed is not None:
        return Out(last.failed)
    if candidate.settings and not set(candidate.settings) & set(last.took):
        return Out("changed nothing in this job")
    agrees = agreement(last, good, results=candidate.results)
    if agrees.agrees is False:
        return Out(f"changes results: {agrees.why}", agrees)
    times = pairs(base, trials)
    if len(times) == GIVE_UP_AFTER and fmean(log(b / a) for a, b in times) >= 0:
        return Out(f"no gain in {GIVE_UP_AFTER} rounds", agrees)
    return None


def pairs(base: Sequence[Trial], trials: Sequence[Trial]) -> list[tuple[float, float]]:
    """Return the step times without and with a setting of the rounds that have both."""
    return [
        (a.step_ms, b.step_ms)
        for a, b in zip(base, trials, strict=False)
        if a.step_ms is not None and b.step_ms is not None
    ]


def still_in(names: Sequence[str], out: Mapping[str, Out]) -> list[str]:
    """Return the settings that were not given up."""
    return [name for name in names if name not in out]
