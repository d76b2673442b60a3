"""What does a sweep recommend? Every variant judged against the first, and one sentence at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from stepscope.analyze.sweep_gain import Agreement, Gain, Row, agreement, gain
from stepscope.cost.hardware import look_up, mfu_peak

_WORTH_PCT = 2.0
"""less memory than this saved is not worth a sentence"""
_STATUS = {"not_measured": "not measured", "out_of_memory": "out of memory", "failed": "failed"}


@dataclass(frozen=True)
class Judged:
    """One variant."""

    name: str
    status: str
    """measured, not measured, out of memory, failed"""
    reason: str | None = None
    step_ms: float | None = None
    gain: Gain | None = None
    agreement: Agreement | None = None
    mfu: float | None = None
    peak_memory_gb: float | None = None
    first_step_ms: float | None = None


@dataclass(frozen=True)
class Verdict:
    """All variants and the advice; `chosen` is None where nothing was measured."""

    variants: tuple[Judged, ...]
    chosen: str | None
    advice: tuple[str, ...]
    mfu_reason: str | None
    """why there is no MFU, or what it is measured against"""


def sweep_verdict(document: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a sweep's results."""
    sweep, rows = document["sweep"], {row["name"]: row for row in document["series"]}
    peak, mfu_reason = _peak(document["environment"])
    first = next((rows[v["name"]] for v in sweep["variants"] if v["name"] in rows), None)
    judged = tuple(_judged(v, rows.get(v["name"]), first, sweep, peak) for v in sweep["variants"])
    if first is None:
        return Verdict(judged, None, ("nothing was measured",), mfu_reason)
    reference = next(v for v in judged if v.name == first["name"])
    rest = [v for v in judged if v.gain and v is not reference]
    if sweep["name"] == "batch-size":
        chosen, advice = _best_size(reference, rest, rows)
    elif sweep["goal"] == "memory":
        chosen, advice = _memory_advice(reference, rest)
    else:
        chosen, advice = _time_advice(reference, rest, rows)
    return Verdict(judged, chosen, tuple(advice), mfu_reason)


def _judged(
    variant: Mapping[str, Any], row: Row | None, first: Row | None, sweep: Mapping[str, Any], peak: float | None
) -> Judged:
    refused = sweep["refusals"].get(variant["name"])
    status = "measured" if row and not refused else _STATUS[refused["what"]] if refused else "not measured"
    reason = refused["reason"] if refused else None if row else "the sweep ended before"
    if row is None or first is None:
        return Judged(variant["name"], status, reason)
    summary = row["summary"]
    step_ms = median(t for run in row["samples_ms"] for t in run)
    other = row["reference"] if sweep["reference"] == "halves" else first["check"]
    on_device = summary.get("peak_memory_allocated_gb")
    return Judged(
        name=variant["name"],
        status=status,
        reason=reason,
        step_ms=step_ms,
        gain=gain(row, first),
        agreement=agreement(row["check"], other, variant.get("tolerance") or sweep["tolerance"]),
        mfu=summary["flops_per_step"] / (step_ms / 1e3) / peak if peak else None,
        peak_memory_gb=None if variant.get("graph_memory") else on_device or summary.get("peak_host_memory_gb"),
        first_step_ms=row["check"]["first_step_ms"],
    )


def _peak(environment: Mapping[str, Any]) -> tuple[float | None, str | None]:
    memory_gb = environment.get("device_memory_gb")
    found = look_up(environment.get("device") or "", memory_bytes=int(memory_gb * 1e9) if memory_gb else None)
    peak = mfu_peak(found.chip) if found.chip else None
    if peak is None:
        return None, f"no MFU: {found.reason or 'the chip has no 16-bit tensor peak'}"
    return peak.flops_per_s, f"MFU against {peak.flops_per_s / 1e12:.0f} TFLOP/s, dense {peak.precision}"


def _time_advice(reference: Judged, rest: Sequence[Judged], rows: Mapping[str, Row]) -> tuple[str, list[str]]:
    """The fastest that agrees, if it is faster beyond the noise."""
    good = [v for v in rest if v.agreement and v.agreement.agrees is not False]
    best = max(good, key=lambda v: v.gain.speedup if v.gain else 0.0, default=None)
    advice = []
    if best and best.gain and best.gain.faster:
        chosen = best.name
        advice.append(f"use {best.name}: {gain_text(best.gain)} {reference.name}{_paid_back(reference, best)}")
        same = [v.name for v in good if v is not best and _as_fast(rows[v.name], rows[best.name])]
        advice += [f"as fast within the noise: {', '.join(same)}"] if same else []
    else:
        chosen = reference.name
        advice.append(f"keep {reference.name}: no variant is faster beyond the noise{_closest(best)}")
    apart = [v for v in rest if v.agreement and v.agreement.agrees is False]
    advice += [f"{v.name} is out: its results differ from {reference.name}'s{_errors(v)}" for v in apart]
    return chosen, advice + _undecided(good)


def _memory_advice(reference: Judged, rest: Sequence[Judged]) -> tuple[str, list[str]]:
    """What each saves for what; one that costs nothing measurable is worth taking."""
    savers = [v for v in rest if v.agreement and v.agreement.agrees is not False and _saved(reference, v) > _WORTH_PCT]
    free = [v for v in savers if v.gain and not v.gain.slower and not v.gain.undecided]
    apart = [v for v in rest if v.agreement and v.agreement.agrees is False]
    out = [f"{v.name} is out: its results differ from {reference.name}'s{_errors(v)}" for v in apart]
    if free:
        best = max(free, key=lambda v: _saved(reference, v))
        return best.name, [f"use {best.name}: {_exchange(reference, best)}", *out]
    if not savers:
        known = reference.peak_memory_gb is not None
        why = "no variant saves memory" if known else "memory is not known here, and no variant saves time"
        return reference.name, [f"keep {reference.name}: {why}", *out]
    cheapest = max(savers, key=lambda v: _saved(reference, v) / max(_cost_pct(v), 0.1))
    most = max(savers, key=lambda v: _saved(reference, v))
    advice = [f"keep {reference.name} where memory suffices; where it does not, {cheapest.name}"]
    advice += [f"{v.name}: {_exchange(reference, v)}" for v in dict.fromkeys((cheapest, most))]
    return reference.name, advice + out + _undecided(savers)


def _best_size(reference: Judged, rest: Sequence[Judged], rows: Mapping[str, Row]) -> tuple[str, list[str]]:
    """The smallest size that is not slower per sample, beyond the noise, than the best."""
    sizes = [reference, *(v for v in rest if v.agreement and v.agreement.agrees is not False)]
    best = max(sizes, key=lambda v: v.gain.speedup if v.gain else 0.0)
    chosen = next(v for v in sizes if v is best or not gain(rows[v.name], rows[best.name]).slower)
    assert chosen.gain is not None
    if chosen is reference:
        advice = [f"stay at {reference.name}: no larger batch is faster per sample beyond the noise"]
        return chosen.name, advice + _undecided(sizes)
    won = f"per sample {gain_text(chosen.gain)} {reference.name}"
    larger = "" if chosen is sizes[-1] else "; larger ones win nothing beyond the noise"
    return chosen.name, [f"use a batch of {chosen.name}: {won}{larger}"]


def _as_fast(row: Row, best: Row) -> bool:
    found = gain(row, best)
    return found.equal and not found.undecided


def gain_text(found: Gain) -> str:
    """Return the gain in words, up to the name of what it is compared with."""
    return f"{found.speedup:.2f} times as fast [{found.low:.2f}, {found.high:.2f}] as"


def _closest(best: Judged | None) -> str:
    if best is None or best.gain is None:
        return ""
    return f" (closest: {best.name}, {best.gain.speedup:.2f} x [{best.gain.low:.2f}, {best.gain.high:.2f}])"


def _undecided(variants: Sequence[Judged]) -> list[str]:
    """Say where the noise is too large to tell."""
    names = [v.name for v in variants if v.gain and v.gain.undecided]
    if not names:
        return []
    return [
        f"undecided for {', '.join(names)}: the noise hides differences over 5 %; more --runs, or a quieter machine"
    ]


def _paid_back(reference: Judged, best: Judged) -> str:
    """Say after how many steps a long first step is paid back."""
    if None in (reference.first_step_ms, best.first_step_ms, reference.step_ms, best.step_ms):
        return ""
    extra_ms = best.first_step_ms - reference.first_step_ms  # type: ignore[operator]
    saved_ms = reference.step_ms - best.step_ms  # type: ignore[operator]
    if extra_ms < 1000 or saved_ms <= 0:
        return ""
    return f"; its first step takes {extra_ms / 1e3:.1f} s longer, paid back after {extra_ms / saved_ms:,.0f} steps"


def _saved(reference: Judged, variant: Judged) -> float:
    """Return the memory saved in percent of the reference's peak; 0 where it is not known."""
    if not reference.peak_memory_gb or variant.peak_memory_gb is None:
        return 0.0
    return 100 * (1 - variant.peak_memory_gb / reference.peak_memory_gb)


def _cost_pct(variant: Judged) -> float:
    return 100 * (1 / variant.gain.speedup - 1) if variant.gain else 0.0


def _exchange(reference: Judged, variant: Judged) -> str:
    assert variant.gain is not None
    saved = f"saves {_saved(reference, variant):.0f} % of the peak memory"
    if variant.gain.equal and not variant.gain.undecided:
        return f"{saved} and costs no time beyond the noise"
    low, high = 100 * (1 / variant.gain.high - 1), 100 * (1 / variant.gain.low - 1)
    if variant.gain.faster:
        return f"{saved} and is {gain_text(variant.gain)} {reference.name}"
    return f"{saved} for {_cost_pct(variant):+.0f} % of time [{low:+.0f}, {high:+.0f}]"


def _errors(variant: Judged) -> str:
    found = variant.agreement
    if found is None or found.gradient_error is None or found.loss_error is None:
        return f" ({found.why})" if found else ""
    return f" (gradient by {found.gradient_error:.1e}, loss by {found.loss_error:.1e})"
