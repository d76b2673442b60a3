"""DDP or sharded? One recommendation from what was measured: what fits, what is clearly faster, what is simple.

Strategies come from simple to complicated. What failed, does not fit into memory or computes something else is out. Of
the rest the simplest is taken, unless a more complicated one is clearly faster: by 2 % or more, and the 95 % interval
of the ratio of their times lies below 1. Runs of a simpler one may differ so much that its own interval is wide: where
its step is shorter than that of the one so found, it is taken. So a small model gets DDP, and a large one what fits.
"""

from collections.abc import Mapping, Sequence

from stepscope.dataclass import dataclass
from stepscope.results.sweeps.judgement import VariantResult
from stepscope.results.times import ratio
from stepscope.units import readable_bytes

# of the time: less of a gain is not worth a more complicated strategy
_WORTH = 0.98
# of the memory: above, a longer sequence or a fragmented allocator ends the job
_FULL = 0.95

Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Recommendation:
    """The strategy to take, by how much it differs from the next, and what is out."""

    series: str
    reason: str
    #: what it is taken instead of: the simplest that fits, or a more complicated one that is clearly faster than that;
    #: the fastest of the others where it is the simplest itself, None without another
    against: str | None
    #: its time over the other's, with the 95 % interval
    time_over: float | None
    time_over_low: float | None
    time_over_high: float | None
    #: whether that interval holds 1
    no_difference: bool
    peak_memory_gb: float | None
    memory_limit_gb: float | None
    #: names, and why they are out
    excluded: Mapping[str, str]


def recommendation(
    variants: Sequence[VariantResult], runs: Mapping[str, Runs], *, limit_gb: float | None
) -> Recommendation | None:
    """Return the strategy to take, of variants from simple to complicated; None where all are out."""
    excluded = {v.name: why for v in variants if (why := _why_out(v, limit_gb))}
    able = [v for v in variants if v.name not in excluded]
    if not able:
        return None
    chosen = able[0]
    for other in able[1:]:
        middle, _, most = ratio(runs[other.name], runs[chosen.name])
        if middle < _WORTH and most < 1:
            chosen = other
    faster, chosen = chosen, _simpler_and_shorter(chosen, able)
    against = faster if chosen is not faster else able[0] if chosen is not able[0] else _fastest(able[1:])
    none: tuple[float | None, float | None, float | None] = (None, None, None)
    over, low, high = ratio(runs[chosen.name], runs[against.name]) if against else none
    return Recommendation(
        series=chosen.name,
        reason=_reason(chosen, faster, able, variants, excluded),
        against=against.name if against else None,
        time_over=over,
        time_over_low=low,
        time_over_high=high,
        no_difference=low is not None and high is not None and low <= 1 <= high,
        peak_memory_gb=chosen.peak_memory_gb,
        memory_limit_gb=limit_gb,
        excluded=excluded,
    )


def strategy_sentences(found: Recommendation | None, variants: Sequence[VariantResult]) -> list[str]:
    """Return the recommendation in words: what to use and why, its margin, its memory, and what is out."""
    if found is None:
        return ["no strategy fits and computes the same; `stepscope predict strategy` says what other devices would do"]
    lines = [f"use {found.series}: {found.reason}", *_margin(found), *_memory(found, variants)]
    measured = {v.name for v in variants if v.step_ns is not None}
    return lines + [f"{name} is out: {why}" for name, why in found.excluded.items() if name in measured]


def _why_out(v: VariantResult, limit_gb: float | None) -> str | None:
    if v.status != "measured" or v.step_ns is None:
        return f"{v.status}: {v.reason}"
    if limit_gb and v.peak_memory_gb and v.peak_memory_gb > _FULL * limit_gb:
        return f"it takes {_size(v.peak_memory_gb)}, more than {100 * _FULL:.0f} % of the {_size(limit_gb)} of a rank"
    if v.out:
        return f"its results differ ({v.agreement.why if v.agreement else 'unknown why'})"
    return None


def _fastest(others: Sequence[VariantResult]) -> VariantResult | None:
    return min(others, key=lambda v: v.step_ns or 0, default=None)


def _simpler_and_shorter(chosen: VariantResult, able: Sequence[VariantResult]) -> VariantResult:
    simpler = _fastest(able[: able.index(chosen)])
    return simpler if simpler and (simpler.step_ns or 0) < (chosen.step_ns or 0) else chosen


def _reason(
    chosen: VariantResult,
    faster: VariantResult,
    able: Sequence[VariantResult],
    variants: Sequence[VariantResult],
    excluded: Mapping[str, str],
) -> str:
    simpler = [v.name for v in variants[: variants.index(chosen)] if v.name in excluded]
    parts = [f"{' and '.join(simpler)} cannot be used"] if simpler else []
    if chosen is not faster:
        parts.append(f"simpler than {faster.name} and its step is shorter; that is clearly faster than {able[0].name}")
    elif chosen is not able[0]:
        parts.append(f"clearly faster than {able[0].name}, the simplest that can")
    elif len(able) == 1:
        parts.append("nothing else can be used")
    else:
        parts.append("the simplest that can" if simpler else "the simplest")
        parts.append("nothing is clearly faster")
    return "; ".join(parts)


def _margin(found: Recommendation) -> list[str]:
    if found.against is None or found.time_over is None:
        return []
    interval = f"[{found.time_over_low:.2f}, {found.time_over_high:.2f}]"
    said = "no difference beyond the noise: " if found.no_difference else ""
    return [f"{said}its step takes {found.time_over:.2f} x {interval} the time of {found.against}"]


def _memory(found: Recommendation, variants: Sequence[VariantResult]) -> list[str]:
    if not found.peak_memory_gb:
        return ["memory is not known here"]
    of = f" of {_size(found.memory_limit_gb)}" if found.memory_limit_gb else ""
    able = [v for v in variants if v.name not in found.excluded and v.peak_memory_gb]
    least = min(able, key=lambda v: v.peak_memory_gb or 0.0)
    less = "" if least.name == found.series else f"; least: {least.name} with {_size(least.peak_memory_gb or 0.0)}"
    return [f"it takes {_size(found.peak_memory_gb)}{of} a rank{less}"]


def _size(gb: float) -> str:
    return readable_bytes(gb * 1e9)
