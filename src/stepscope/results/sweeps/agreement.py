"""Does a variant of a sweep still compute the same? From the checks of its runs and of what it is compared with.

A check holds the losses of the first steps and a sketch of the first gradient. Some sweeps change nothing that is
computed, and ask for results that are equal. On a GPU they rarely are: many kernels add in no fixed order, so that even
the first variant differs from itself between its runs. Where it does, others are held to what another order explains.
"""

from collections.abc import Mapping, Sequence
from math import dist, hypot, inf, isfinite
from typing import Any, NamedTuple

from stepscope.dataclass import dataclass

Check = Mapping[str, Any]
Tolerance = Mapping[str, Any]


@dataclass(frozen=True)
class Agreement:
    """How far results are apart at most, relative; None where that is not known."""

    gradient_error: float | None
    loss_error: float | None
    agrees: bool | None
    #: by what they were judged, or why they were not
    why: str


class _Distance(NamedTuple):
    gradient: float
    loss: float


def agreement(
    checks: Sequence[Check], other: Check | None, *, repeats: Sequence[Check], name: str, tolerance: Tolerance,
    reordered: Tolerance | None = None,
) -> Agreement:  # fmt: skip
    """Return whether all of a variant's runs are within the tolerance of `other`.

    `repeats` are the checks of all runs of variant `name`, which tell how far results differ where nothing was changed;
    `reordered` is the tolerance for the same sums in another order, where `tolerance` is closer than that.
    """
    if not checks or other is None:
        return Agreement(None, None, None, "there was nothing to compare with")
    apart = _worst(checks, other)
    if not all(map(isfinite, apart)):
        return Agreement(None, None, False, "gradients or losses are not finite")
    if _within(apart, tolerance):
        return Agreement(*apart, True, tolerance["why"])
    own = _worst(repeats[1:], repeats[0]) if len(repeats) > 1 else None
    if own is None:
        return Agreement(*apart, *_after_one_run(apart, name, tolerance, reordered))
    return Agreement(*apart, *_beside_its_own(apart, own, name, tolerance, reordered or tolerance))


def _after_one_run(
    apart: _Distance, name: str, tolerance: Tolerance, reordered: Tolerance | None
) -> tuple[bool | None, str]:
    if reordered and _within(apart, reordered):
        return None, f"one run cannot tell whether {name} would differ from itself as much; take --runs 2"
    return False, tolerance["why"]


def _beside_its_own(
    apart: _Distance, own: _Distance, name: str, tolerance: Tolerance, widest: Tolerance
) -> tuple[bool | None, str]:
    if _within(own, tolerance):
        return False, tolerance["why"]
    itself = (
        f"{name} differs from itself between runs by {own.gradient:.1e} in the gradient, {own.loss:.1e} in the loss"
    )
    if not _within(own, widest):
        return None, f"{itself}: more than rounding explains, so that nothing can be compared with it"
    bounds = f"gradient {widest['gradient']:.1e}, loss {widest['loss']:.1e}"
    return _within(apart, widest), f"{itself}; so the bounds are those of {widest['why']} ({bounds})"


def _worst(checks: Sequence[Check], other: Check) -> _Distance:
    found = [_apart(check, other) for check in checks]
    return _Distance(max(a.gradient for a in found), max(a.loss for a in found))


def _apart(ours: Check, theirs: Check) -> _Distance:
    pairs = zip(ours["losses"], theirs["losses"], strict=True)
    loss = max(abs(a - b) / max(abs(b), 1e-30) for a, b in pairs)
    return _Distance(_gradients_apart(ours["sketch"], theirs["sketch"]), loss if isfinite(loss) else inf)


def _gradients_apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    size, apart = hypot(*theirs), dist(ours, theirs)
    if not isfinite(size) or not isfinite(apart):
        return inf
    return apart / size if size else float(apart > 0)


def _within(apart: _Distance, tolerance: Tolerance) -> bool:
    return bool(apart.gradient <= tolerance["gradient"] and apart.loss <= tolerance["loss"])
