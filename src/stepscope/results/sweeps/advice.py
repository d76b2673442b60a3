"""What follows from how the variants of a sweep did? The one to use, and the sentences that say why."""

from collections.abc import Mapping, Sequence

from stepscope.results.sweeps.gain import Gain, Row, gain
from stepscope.results.sweeps.judgement import OTHER_SAMPLES, VariantResult
from stepscope.units import NS_PER_S, readable_bytes

# less time or memory than this is not worth a sentence, nor a larger batch
_WORTH_PCT = 2.0

# the name of what to use, and the sentences
Advice = tuple[str, list[str]]


def time_advice(reference: VariantResult, rest: Sequence[VariantResult], rows: Mapping[str, Row]) -> Advice:
    """Return the fastest of those that are faster beyond the noise and compute the same."""
    good = [v for v in rest if not v.out]
    faster = sorted((v for v in good if v.gain and v.gain.faster), key=_speedup)
    if not faster:
        advice = [f"keep {reference.name}: {_why_none_is_faster(rest)}"]
        return reference.name, advice + _caveats(reference, rest, good)
    best = faster[-1]
    advice = [f"use {best.name}: {_gain_text(best.gain)} {reference.name}{_paid_back(reference, best)}"]
    same = [v.name for v in good if v is not best and _as_fast(rows[v.name], rows[best.name])]
    advice += [f"as fast within the noise: {', '.join(same)}"] if same else []
    return best.name, advice + _caveats(reference, rest, good)


def memory_advice(reference: VariantResult, rest: Sequence[VariantResult]) -> Advice:
    """Return one that saves memory and costs no measurable time, or what each saves for what."""
    savers = [v for v in rest if not v.out and not _other(v) and _saved_pct(reference, v) > _WORTH_PCT]
    free = [v for v in savers if v.gain and not v.gain.slower and not v.gain.undecided]
    caveats = _caveats(reference, rest, savers)
    if not savers:
        return reference.name, [f"keep {reference.name}: {_why_none_saves(reference, rest)}", *caveats]
    if free:
        best = max(free, key=lambda v: _saved_pct(reference, v))
        more = [v for v in savers if _saved_pct(reference, v) > _saved_pct(reference, best)]
        others = _exchanges(reference, _worth_their_price(reference, more))
        return best.name, [f"use {best.name}: {_exchange(reference, best)}", *others, *caveats]
    cheapest = max(savers, key=lambda v: _saved_pct(reference, v) / max(_cost_pct(v), 0.1))
    advice = [f"keep {reference.name} where memory suffices; where it does not, {cheapest.name}"]
    return reference.name, advice + _exchanges(reference, _worth_their_price(reference, savers)) + caveats


def size_advice(reference: VariantResult, rest: Sequence[VariantResult], rows: Mapping[str, Row]) -> Advice:
    """Return the smallest batch whose speed per sample is that of the best, but for the noise or 2 %."""
    sizes = [reference, *(v for v in rest if not v.out)]
    best = max(sizes, key=_speedup)
    chosen = next(v for v in sizes if v is best or _about_as_fast(rows[v.name], rows[best.name]))
    caveats = _caveats(reference, rest, sizes)
    if chosen is reference:
        none = f"no larger batch is {_WORTH_PCT:.0f} % faster per sample beyond the noise"
        return chosen.name, [f"stay at {reference.name}: {none}", *caveats]
    larger = "" if chosen is sizes[-1] else f"; larger ones are not {_WORTH_PCT:.0f} % faster beyond the noise"
    won = f"per sample {_gain_text(chosen.gain)} {reference.name}"
    return chosen.name, [f"use a batch of {chosen.name}: {won}{larger}", *caveats]


def communication_saved(
    reference: VariantResult, rest: Sequence[VariantResult], rows: Mapping[str, Row], *, once_of: Mapping[str, str]
) -> list[str]:
    """Return what exchanging gradients less often saves: once in a step, and once for more samples.

    `once_of` has, for variants that exchange in each micro-batch, the name of the same that exchanges once.
    """
    lines = []
    for v in rest:
        once = once_of.get(v.name)
        if once and once in rows:
            won = _gained(gain(rows[once], rows[v.name]))
            lines.append(f"exchanging gradients once in {once} is {won} exchanging in each micro-batch")
        elif _other(v) and v.gain:
            lines.append(f"{v.name}, more samples to a step, is {_gained(v.gain)} {reference.name} per sample")
    return lines


def _gained(found: Gain) -> str:
    noise = "no faster or slower beyond the noise: " if found.equal else ""
    return f"{noise}{_gain_text(found)}"


def held_memory(reference: VariantResult, rest: Sequence[VariantResult]) -> list[str]:
    """Return the sentence on the memory that an allocator holds, beside what was asked of it."""
    before_gb = _held_gb(reference)
    held_gb = {v.name: found for v in rest if not v.out and (found := _held_gb(v)) is not None}
    if not before_gb or not held_gb:
        return []
    least = min(held_gb, key=held_gb.__getitem__)
    if held_gb[least] > before_gb * (1 - _WORTH_PCT / 100):
        return [f"no setting holds {_WORTH_PCT:.0f} % less memory than {reference.name}"]
    less_pct = 100 * (1 - held_gb[least] / before_gb)
    return [f"{least} holds {less_pct:.0f} % less memory: {_size(held_gb[least])} instead of {_size(before_gb)}"]


def _size(gb: float) -> str:
    return readable_bytes(gb * 1e9)


def _gain_text(found: Gain | None) -> str:
    assert found is not None
    return f"{found.speedup:.2f} times as fast [{found.low:.2f}, {found.high:.2f}] as"


def _why_none_is_faster(rest: Sequence[VariantResult]) -> str:
    if not rest:
        return "nothing else was measured"
    excluded = [f"{v.name} ({_in_short(v.gain)})" for v in rest if v.out and v.gain and v.gain.faster]
    if excluded:
        return f"of the others only those with other results are faster beyond the noise: {', '.join(excluded)}"
    closest = max(rest, key=_speedup)
    slower = all(v.gain and v.gain.slower for v in rest)
    said = "all others are slower" if slower else "no variant is faster beyond the noise"
    return f"{said} (closest: {closest.name}, {_in_short(closest.gain)})"


def _why_none_saves(reference: VariantResult, rest: Sequence[VariantResult]) -> str:
    if not rest:
        return "nothing else was measured"
    if reference.peak_memory_gb is None:
        return "memory is not known here"
    excluded = [v.name for v in rest if v.out and _saved_pct(reference, v) > _WORTH_PCT]
    return (
        f"only those with other results save memory: {', '.join(excluded)}" if excluded else "no variant saves memory"
    )


def _caveats(reference: VariantResult, rest: Sequence[VariantResult], weighed: Sequence[VariantResult]) -> list[str]:
    out = [f"{v.name} is out: its results differ from {reference.name}'s{_errors(v)}" for v in rest if v.out]
    unknown: dict[str, list[str]] = {}
    for v in weighed:
        if v.agreement and v.agreement.agrees is None:
            unknown.setdefault(v.agreement.why, []).append(v.name)
    return [
        *out,
        *(f"whether the results of {', '.join(names)} agree is not known: {why}" for why, names in unknown.items()),
        *_undecided(weighed),
    ]


def _undecided(variants: Sequence[VariantResult]) -> list[str]:
    names = [v.name for v in variants if v.gain and v.gain.undecided]
    remedy = "the noise hides differences over 5 %; more --runs, or a quieter machine"
    return [f"undecided for {', '.join(names)}: {remedy}"] if names else []


def _as_fast(row: Row, best: Row) -> bool:
    found = gain(row, best)
    return found.equal and not found.undecided


def _about_as_fast(row: Row, best: Row) -> bool:
    found = gain(row, best)
    return not found.slower or found.speedup > 1 - _WORTH_PCT / 100


def _speedup(variant: VariantResult) -> float:
    return variant.gain.speedup if variant.gain else 0.0


def _in_short(found: Gain | None) -> str:
    return f"{found.speedup:.2f} x [{found.low:.2f}, {found.high:.2f}]" if found else "?"


def _paid_back(reference: VariantResult, best: VariantResult) -> str:
    if None in (reference.first_step_ns, best.first_step_ns, reference.step_ns, best.step_ns):
        return ""
    extra_ns = best.first_step_ns - reference.first_step_ns  # type: ignore[operator]
    saved_ns = reference.step_ns - best.step_ns  # type: ignore[operator]
    if extra_ns < NS_PER_S or saved_ns <= 0:
        return ""
    longer, steps = f"{extra_ns / NS_PER_S:.1f} s", f"{extra_ns / saved_ns:,.0f} steps"
    return f"; its first step takes {longer} longer, paid back after {steps}"


def _held_gb(variant: VariantResult) -> float | None:
    return variant.reserved_memory_gb if variant.reserved_memory_gb is not None else variant.peak_memory_gb


def _saved_pct(reference: VariantResult, variant: VariantResult) -> float:
    if not reference.peak_memory_gb or variant.peak_memory_gb is None:
        return 0.0
    return 100 * (1 - variant.peak_memory_gb / reference.peak_memory_gb)


def _cost_pct(variant: VariantResult) -> float:
    return 100 * (1 / variant.gain.speedup - 1) if variant.gain else 0.0


def _worth_their_price(reference: VariantResult, savers: Sequence[VariantResult]) -> list[VariantResult]:
    by_cost, found = sorted(savers, key=_cost_pct), list[VariantResult]()
    for variant in by_cost:
        if not found or _saved_pct(reference, variant) > _saved_pct(reference, found[-1]):
            found.append(variant)
    return found


def _exchanges(reference: VariantResult, variants: Sequence[VariantResult]) -> list[str]:
    return [f"{v.name}: {_exchange(reference, v)}" for v in variants]


def _exchange(reference: VariantResult, variant: VariantResult) -> str:
    assert variant.gain is not None
    saved = f"saves {_saved_pct(reference, variant):.0f} % of the peak memory"
    if variant.gain.equal and not variant.gain.undecided:
        return f"{saved} and costs no time beyond the noise"
    low, high = 100 * (1 / variant.gain.high - 1), 100 * (1 / variant.gain.low - 1)
    if variant.gain.faster:
        return f"{saved} and is {_gain_text(variant.gain)} {reference.name}"
    return f"{saved} for {_cost_pct(variant):+.0f} % of time [{low:+.0f}, {high:+.0f}]"


def _other(variant: VariantResult) -> bool:
    return variant.agreement is not None and variant.agreement.why == OTHER_SAMPLES


def _errors(variant: VariantResult) -> str:
    found = variant.agreement
    if found is None or found.gradient_error is None or found.loss_error is None:
        return f" ({found.why})" if found else ""
    return f" (gradient by {found.gradient_error:.1e}, loss by {found.loss_error:.1e})"
