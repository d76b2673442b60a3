"""Does the job still compute the same with a setting? Losses of the same backward, and sums over the parameters.

    apart = max |loss - loss'| / |loss'|        over the first backwards, before rounding has grown into the loss
            |sum - sum'| / size'                over the parameters at the end

Settings that change no number have to agree exactly; where the unchanged job itself differs from trial to trial (many
GPU kernels add in no fixed order), by no more than three times that. Those that only add in another order are held to
rounding. Inexact ones, which were asked for, may be a few percent off, and how far is told.
"""

from collections.abc import Sequence

from stepscope.dataclass import dataclass
from stepscope.tune.candidates import EQUAL, INEXACT
from stepscope.tune.trial import Trial

ROUNDING_BOUND = 1e-3
"""relative: what other orders of summation grow to in the first steps"""
MAX_OWN = 1e-2
"""by which the unchanged job may differ from itself: more is no rounding, but a seed that is not set"""
_COMPARED = 16  # backwards
INEXACT_BOUND = 0.05
"""for settings that may change results: further off is another training"""
_OWN_TIMES = 3.0
_SMALL = 1e-3
"""of the first loss: below that a loss is as good as 0, and its relative error says nothing"""


@dataclass(frozen=True)
class Agreement:
    """Whether results agree, None where that cannot be told, and how far they are apart."""

    agrees: bool | None
    apart: float | None
    why: str


def agreement(trial: Trial, base: Sequence[Trial], *, results: str) -> Agreement:
    """Return whether a trial computes what the trials of the unchanged job do."""
    own = max((a for other in base[1:] if (a := distance(other, base[0])) is not None), default=0.0)
    if own > MAX_OWN:
        return Agreement(None, None, f"the unchanged job differs from itself by {own:.1e}: set its seeds")
    apart = distance(trial, base[0])
    if apart is None:
        return Agreement(None, None, "it left no loss and no parameters to compare")
    if results == INEXACT:
        return Agreement(apart <= INEXACT_BOUND, apart, f"losses or parameters differ by {apart:.1e}")
    bound = max(0.0 if results == EQUAL else ROUNDING_BOUND, min(MAX_OWN, _OWN_TIMES * own))
    if apart <= bound:
        return Agreement(True, apart, "equal" if apart == 0 else f"equal within rounding ({apart:.0e})")
    return Agreement(False, apart, f"losses or parameters differ by {apart:.1e}")


def distance(a: Trial, b: Trial) -> float | None:
    """Return how far two trials are apart, relative; infinite where one is not finite, None without a number of both.

    Sums over the parameters are compared where both trials took the same number of steps.
    """
    pairs = zip(a.losses[:_COMPARED], b.losses[:_COMPARED], strict=False)
    apart = [_apart(x, y, b.losses[0]) for x, y in pairs]
    if a.parameters is not None and b.parameters is not None and a.steps == b.steps:
        apart.append(abs(a.parameters[0] - b.parameters[0]) / max(b.parameters[1], 1e-30))
    return max(apart, default=None)


def _apart(x: float | None, y: float | None, first: float | None) -> float:
    if x is None or y is None:
        return 0.0 if x is y else float("inf")
    return abs(x - y) / max(abs(y), _SMALL * abs(first or 0.0), 1e-30)
