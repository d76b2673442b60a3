"""The verdict on a sweep: each variant's gain, whether its results agree, and which one to use.

A check holds the losses of the first steps and a sketch of the first gradient. Some sweeps change nothing that is
computed, and expect equal results. On a GPU they rarely are: many kernels add in no fixed order, so that even the first
variant differs from itself between its runs. Where it does, others are held to what another order explains.

Strategies come from simple to complicated. What failed, does not fit into memory or computes something else is out. Of
the rest the simplest is used, unless a more complicated one is clearly faster: by 2 % or more, and the 95 % interval of
the ratio of their times is below 1. Runs of a simpler one may differ so much that its own interval is wide: where its
step is shorter than that of the one so found, it is used. So a small model gets DDP, and a large one what fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import dist, hypot, inf, isfinite
from statistics import median
from typing import Any

from stepscope.cost.chips import look_up, mfu_peak
from stepscope.document.rows import in_ms
from stepscope.lab.experiment import Agreement
from stepscope.lab.results.times import over
from stepscope.records import dataclass
from stepscope.stats.change import Change
from stepscope.units import NS_PER_S, ns_of_ms, readable_bytes

# less time or memory than this is not worth a sentence, a larger batch, nor a more complicated strategy
_WORTH_PCT = 2.0
# of the memory: above, a longer sequence or a fragmented allocator ends the job
_FULL = 0.95
_OTHER_SAMPLES = "its steps take other samples"
_STATUS = {"not_measured": "not measured", "out_of_memory": "out of memory", "failed": "failed"}

Check = Mapping[str, Any]
Tolerance = Mapping[str, Any]
Row = Mapping[str, Any]
Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class VariantResult:
    """One variant: measured, not measured, out of memory or failed.

    Peak memory is that allocated on the device; on the CPU, the growth of the process. Reserved memory is what the
    device's allocator held; None on the CPU.
    """

    name: str
    status: str
    reason: str | None = None
    step_ns: int | None = None
    #: of the time per sample, from the first variant; of a step where its samples are unknown
    change: Change | None = None
    agreement: Agreement | None = None
    mfu: float | None = None
    peak_memory_gb: float | None = None
    reserved_memory_gb: float | None = None
    first_step_ns: int | None = None

    @property
    def out(self) -> bool:
        """Return whether its results differ."""
        return self.agreement is not None and self.agreement.agrees is False

    @property
    def speedup(self) -> float:
        """Return its speed over the first one's, 0 where unknown."""
        return 1 / self.change.ratio if self.change else 0.0

    @property
    def other_samples(self) -> bool:
        """Return whether its results cannot be compared."""
        return self.agreement is not None and self.agreement.why == _OTHER_SAMPLES


@dataclass(frozen=True)
class Verdict:
    """All variants and the advice; `chosen` is None where nothing was measured.

    `mfu_reason` is why there is no MFU, or what it is measured against.
    """

    variants: tuple[VariantResult, ...]
    chosen: str | None
    advice: tuple[str, ...]
    mfu_reason: str | None
    recommendation: Mapping[str, Any] | None = None


def sweep_verdict(document: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a sweep's results."""
    # Results written before the checks of all runs were stored have the first run's alone.
    sweep, rows = document["sweep"], {row["name"]: {"checks": [row.get("check")], **row} for row in document["series"]}
    peak, mfu_reason = _peak(document["environment"], sharing=bool(sweep.get("method", {}).get("share_devices")))
    measured = [v for v in sweep["variants"] if v["name"] in rows]
    first = rows[measured[0]["name"]] if measured else None
    # What others are held against is exact: of the sweep's own tolerance, where one such was measured.
    exact = next((rows[v["name"]] for v in measured if not v.get("tolerance")), first)
    every = tuple(_variant_result(v, rows.get(v["name"]), first, exact, sweep, peak) for v in sweep["variants"])
    if first is None:
        return Verdict(every, None, ("nothing was measured",), mfu_reason)
    if sweep["name"] == "strategy":
        limit_bytes = sweep["method"].get("memory_limit_bytes")
        limit_gb = limit_bytes / 1e9 if limit_bytes else document["environment"].get("device_memory_gb")
        found = recommendation(every, {name: row["samples_ms"] for name, row in rows.items()}, limit_gb=limit_gb)
        lines = tuple(strategy_sentences(found, every))
        return Verdict(every, found["series"] if found else None, lines, mfu_reason, found)
    reference = next(v for v in every if v.name == first["name"])
    rest = [v for v in every if v.change and v is not reference]
    once_of = {v["name"]: v["once"] for v in sweep["variants"] if v.get("once")}
    if sweep["name"] == "batch-size":
        chosen, advice = _size_advice(reference, rest, rows)
    elif sweep["goal"] == "memory":
        chosen, advice = _memory_advice(reference, [v for v in rest if v.name not in once_of])
    else:
        chosen, advice = _time_advice(reference, rest, rows)
    if sweep["name"] == "accumulation":
        advice += _communication_saved(reference, rest, rows, once_of)
    if sweep["name"] == "allocator":
        advice += _held_memory(reference, rest)
    return Verdict(every, chosen, tuple(advice), mfu_reason)


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON."""
    found = asdict(verdict)
    for row, variant in zip(found["variants"], verdict.variants, strict=True):
        faster = row.pop("change") and variant.change and variant.change.inverse()
        row["gain"] = {"speedup": faster.ratio, "low": faster.low, "high": faster.high} if faster else None
    return {**found, "advice": list(verdict.advice), "variants": [in_ms(row) for row in found["variants"]]}


def _peak(environment: Mapping[str, Any], *, sharing: bool) -> tuple[float | None, str | None]:
    memory_gb = environment.get("device_memory_gb")
    found = look_up(environment.get("device") or "", memory_bytes=int(memory_gb * 1e9) if memory_gb else None)
    peak = mfu_peak(found.chip) if found.chip else None
    if peak is None:
        return None, f"no MFU: {found.reason or 'the chip has no 16-bit tensor peak'}"
    devices = environment.get("world_size") or 1
    if sharing and environment.get("devices_here"):
        devices = min(devices, environment["devices_here"])
    per_device = f"{peak.flops_per_s / 1e12:.0f} TFLOP/s, dense {peak.precision}"
    return devices * peak.flops_per_s, f"MFU against {per_device}" + (f", of {devices} devices" if devices > 1 else "")


def _variant_result(
    variant: Mapping[str, Any], row: Row | None, first: Row | None, exact: Row | None, sweep: Mapping[str, Any],
    peak_flops_per_s: float | None,
) -> VariantResult:  # fmt: skip
    refused = sweep["refusals"].get(variant["name"])
    status = _STATUS[refused["what"]] if refused else "measured" if row else "not measured"
    reason = refused["reason"] if refused else None if row else "the sweep ended before"
    if row is None or first is None or exact is None:
        return VariantResult(variant["name"], status, reason)
    summary, flops = row["summary"], row["summary"]["flops_per_step"]
    step_ms = median(t for run in row["samples_ms"] for t in run)
    on_device = None if variant.get("graph_memory") else summary.get("peak_memory_allocated_gb")
    halves = sweep["reference"] == "halves"
    unchanged = row if halves else exact
    agreed = Agreement(None, _OTHER_SAMPLES)
    if not variant.get("other_samples"):
        agreed = agreement(
            row["checks"], row["reference"] if halves else exact["checks"][0], repeats=unchanged["checks"],
            name=unchanged["name"], tolerance=variant.get("tolerance") or sweep["tolerance"],
            reordered=sweep.get("reordered"),
        )  # fmt: skip
    return VariantResult(
        name=variant["name"],
        status=status,
        reason=reason,
        step_ns=ns_of_ms(step_ms),
        change=change(row, first, tests=max(len(sweep["variants"]) - 1, 1)),
        agreement=agreed,
        mfu=flops / (step_ms / 1e3) / peak_flops_per_s if flops and peak_flops_per_s else None,
        peak_memory_gb=on_device or summary.get("peak_host_memory_gb"),
        reserved_memory_gb=summary.get("peak_memory_reserved_gb"),
        first_step_ns=ns_of_ms(row["checks"][0]["first_step_ms"]),
    )


def change(row: Row, reference: Row, *, tests: int = 1) -> Change:
    """Return the change of the time per sample; steps are compared where their samples are unknown."""
    samples, others = (one["summary"]["samples_per_step"] or 1.0 for one in (row, reference))
    return over(row["samples_ms"], reference["samples_ms"], tests=tests).scaled(others / samples)


def speed(change: Change, unit: str = "times as fast") -> str:
    """Return how many times as fast, with the 95 % interval."""
    found = change.inverse()
    return f"{found.ratio:.2f} {unit} [{found.low:.2f}, {found.high:.2f}]"


def agreement(
    checks: Sequence[Check], other: Check | None, *, repeats: Sequence[Check], name: str, tolerance: Tolerance,
    reordered: Tolerance | None = None,
) -> Agreement:  # fmt: skip
    """Return whether all of a variant's runs are within the tolerance of `other`.

    `repeats` are the checks of all runs of variant `name`, which show how far results differ where nothing was changed;
    `reordered` is the tolerance for the same sums in another order, where `tolerance` is closer than that.
    """
    if not checks or other is None:
        return Agreement(None, "there was nothing to compare with")
    apart = _worst(checks, other)
    if not all(map(isfinite, apart)):
        return Agreement(False, "gradients or losses are not finite")
    if _within(apart, tolerance):
        return Agreement(True, tolerance["why"], *apart)
    if len(repeats) < 2:
        if reordered and _within(apart, reordered):
            once = f"one run does not show the variation of {name} itself; take --runs 2"
            return Agreement(None, once, *apart)
        return Agreement(False, tolerance["why"], *apart)
    own, widest = _worst(repeats[1:], repeats[0]), reordered or tolerance
    if _within(own, tolerance):
        return Agreement(False, tolerance["why"], *apart)
    itself = f"{name} differs from itself between runs by {own[0]:.1e} in the gradient, {own[1]:.1e} in the loss"
    if not _within(own, widest):
        random = f"{itself}: more than rounding explains, so that nothing can be compared with it"
        return Agreement(None, random, *apart)
    bounds = f"gradient {widest['gradient']:.1e}, loss {widest['loss']:.1e}"
    why = f"{itself}; so the bounds are those of {widest['why']} ({bounds})"
    return Agreement(_within(apart, widest), why, *apart)


def _is_equal(found: Change) -> bool:
    return not (found.slower or found.faster or found.undecided)


def _worst(checks: Sequence[Check], other: Check) -> tuple[float, float]:
    gradients, losses = [], []
    for check in checks:
        size, apart = hypot(*other["sketch"]), dist(check["sketch"], other["sketch"])
        known = isfinite(size) and isfinite(apart)
        gradients.append((apart / size if size else float(apart > 0)) if known else inf)
        pairs = zip(check["losses"], other["losses"], strict=True)
        loss = max(abs(a - b) / max(abs(b), 1e-30) for a, b in pairs)
        losses.append(loss if isfinite(loss) else inf)
    return max(gradients), max(losses)


def _within(apart: tuple[float, float], tolerance: Tolerance) -> bool:
    return bool(apart[0] <= tolerance["gradient"] and apart[1] <= tolerance["loss"])


def _time_advice(
    reference: VariantResult, rest: Sequence[VariantResult], rows: Mapping[str, Row]
) -> tuple[str, list[str]]:
    good = [v for v in rest if not v.out]
    best = max((v for v in good if v.change and v.change.faster), key=lambda v: v.speedup, default=None)
    caveats = _caveats(reference, rest, good)
    if best is None or best.change is None:
        return reference.name, [f"keep {reference.name}: {_why_none_is_faster(rest)}", *caveats]
    same = []
    for v in good:
        same += [v.name] if v is not best and _is_equal(change(rows[v.name], rows[best.name])) else []
    advice = [f"use {best.name}: {speed(best.change)} as {reference.name}{_paid_back(reference, best)}"]
    advice += [f"as fast within the noise: {', '.join(same)}"] if same else []
    return best.name, advice + caveats


def _memory_advice(reference: VariantResult, rest: Sequence[VariantResult]) -> tuple[str, list[str]]:

    def saved_pct(v: VariantResult) -> float:
        if not reference.peak_memory_gb or v.peak_memory_gb is None:
            return 0.0
        return 100 * (1 - v.peak_memory_gb / reference.peak_memory_gb)

    def cost_pct(v: VariantResult) -> float:
        return 100 * (1 / v.speedup - 1) if v.change else 0.0

    def exchange(v: VariantResult) -> str:
        assert v.change is not None
        saved = f"saves {saved_pct(v):.0f} % of the peak memory"
        if _is_equal(v.change):
            return f"{saved} and costs no time beyond the noise"
        if v.change.faster:
            return f"{saved} and is {speed(v.change)} as {reference.name}"
        low, high = 100 * (v.change.low - 1), 100 * (v.change.high - 1)
        return f"{saved} for {cost_pct(v):+.0f} % of time [{low:+.0f}, {high:+.0f}]"

    def exchanges(variants: Sequence[VariantResult]) -> list[str]:
        found: list[VariantResult] = []
        for v in sorted(variants, key=cost_pct):
            if not found or saved_pct(v) > saved_pct(found[-1]):
                found.append(v)
        return [f"{v.name}: {exchange(v)}" for v in found]

    saves = [v for v in rest if saved_pct(v) > _WORTH_PCT]
    savers = [v for v in saves if not v.out and not v.other_samples]
    caveats = _caveats(reference, rest, savers)
    if not savers:
        wrong = [v.name for v in saves if v.out]
        why = f"only those with other results save memory: {', '.join(wrong)}" if wrong else "no variant saves memory"
        why = "memory is not known here" if reference.peak_memory_gb is None else why
        why = why if rest else "nothing else was measured"
        return reference.name, [f"keep {reference.name}: {why}", *caveats]
    free = [v for v in savers if v.change and not v.change.slower and not v.change.undecided]
    if free:
        best = max(free, key=saved_pct)
        others = exchanges([v for v in savers if saved_pct(v) > saved_pct(best)])
        return best.name, [f"use {best.name}: {exchange(best)}", *others, *caveats]
    cheapest = max(savers, key=lambda v: saved_pct(v) / max(cost_pct(v), 0.1))
    advice = f"keep {reference.name} where memory suffices; where it does not, {cheapest.name}"
    return reference.name, [advice, *exchanges(savers), *caveats]


def _size_advice(
    reference: VariantResult, rest: Sequence[VariantResult], rows: Mapping[str, Row]
) -> tuple[str, list[str]]:
    sizes = [v for v in rest if not v.out]
    faster = [v for v in sizes if v.change and v.change.faster and v.speedup > 1 + _WORTH_PCT / 100]
    caveats = _caveats(reference, rest, [reference, *sizes])
    if not faster:
        none = f"no larger batch is {_WORTH_PCT:.0f} % faster per sample beyond the noise"
        return reference.name, [f"stay at {reference.name}: {none}", *caveats]
    best = max(faster, key=lambda v: v.speedup)

    def about_as_fast(v: VariantResult) -> bool:
        found = change(rows[v.name], rows[best.name])
        return not found.slower or found.ratio < 1 / (1 - _WORTH_PCT / 100)

    chosen = next(v for v in faster if v is best or about_as_fast(v))
    larger = "" if chosen is sizes[-1] else f"; larger ones are not {_WORTH_PCT:.0f} % faster beyond the noise"
    assert chosen.change is not None
    won = f"per sample {speed(chosen.change)} as {reference.name}"
    return chosen.name, [f"use a batch of {chosen.name}: {won}{larger}", *caveats]


def _communication_saved(
    reference: VariantResult, rest: Sequence[VariantResult], rows: Mapping[str, Row], once_of: Mapping[str, str]
) -> list[str]:

    def gained(found: Change) -> str:
        return f"{'' if found.slower or found.faster else 'no faster or slower beyond the noise: '}{speed(found)} as"

    lines = []
    for v in rest:
        once = once_of.get(v.name)
        if once and once in rows:
            won = gained(change(rows[once], rows[v.name]))
            lines.append(f"exchanging gradients once in {once} is {won} exchanging in each micro-batch")
        elif v.other_samples and v.change:
            lines.append(f"{v.name}, more samples to a step, is {gained(v.change)} {reference.name} per sample")
    return lines


def _held_memory(reference: VariantResult, rest: Sequence[VariantResult]) -> list[str]:

    def held(v: VariantResult) -> float | None:
        return v.reserved_memory_gb if v.reserved_memory_gb is not None else v.peak_memory_gb

    before_gb = held(reference)
    held_gb = {v.name: found for v in rest if not v.out and (found := held(v)) is not None}
    if not before_gb or not held_gb:
        return []
    least = min(held_gb, key=held_gb.__getitem__)
    less_pct = 100 * (1 - held_gb[least] / before_gb)
    if less_pct < _WORTH_PCT:
        return [f"no setting holds {_WORTH_PCT:.0f} % less memory than {reference.name}"]
    return [f"{least} holds {less_pct:.0f} % less memory: {_size(held_gb[least])} instead of {_size(before_gb)}"]


def _size(gb: float) -> str:
    return readable_bytes(gb * 1e9)


def _why_none_is_faster(rest: Sequence[VariantResult]) -> str:
    if not rest:
        return "nothing else was measured"

    def short(v: VariantResult) -> str:
        return speed(v.change, "x") if v.change else "?"

    excluded = [f"{v.name} ({short(v)})" for v in rest if v.out and v.change and v.change.faster]
    if excluded:
        return f"of the others only those with other results are faster beyond the noise: {', '.join(excluded)}"
    closest = max(rest, key=lambda v: v.speedup)
    slower = all(v.change and v.change.slower for v in rest)
    said = "all others are slower" if slower else "no variant is faster beyond the noise"
    return f"{said} (closest: {closest.name}, {short(closest)})"


def _caveats(reference: VariantResult, rest: Sequence[VariantResult], weighed: Sequence[VariantResult]) -> list[str]:
    lines = []
    for v in rest:
        if v.out and v.agreement:
            gradient, loss = v.agreement.gradient_error, v.agreement.loss_error
            known = gradient is not None and loss is not None
            errors = f"gradient by {gradient:.1e}, loss by {loss:.1e}" if known else v.agreement.why
            lines.append(f"{v.name} is out: its results differ from {reference.name}'s ({errors})")
    unknown: dict[str, list[str]] = {}
    for v in weighed:
        if v.agreement and v.agreement.agrees is None:
            unknown.setdefault(v.agreement.why, []).append(v.name)
    lines += [f"whether the results of {', '.join(names)} agree is not known: {why}" for why, names in unknown.items()]
    if undecided := [v.name for v in weighed if v.change and v.change.undecided]:
        remedy = "the noise hides differences over 5 %; more --runs, or a quieter machine"
        lines.append(f"undecided for {', '.join(undecided)}: {remedy}")
    return lines


def _paid_back(reference: VariantResult, best: VariantResult) -> str:
    extra_ns = (best.first_step_ns or 0) - (reference.first_step_ns or 0)
    saved_ns = (reference.step_ns or 0) - (best.step_ns or 0)
    if extra_ns < NS_PER_S or saved_ns <= 0:
        return ""
    longer, steps = f"{extra_ns / NS_PER_S:.1f} s", f"{extra_ns / saved_ns:,.0f} steps"
    return f"; its first step takes {longer} longer, paid back after {steps}"


def recommendation(
    variants: Sequence[VariantResult], runs: Mapping[str, Runs], *, limit_gb: float | None
) -> dict[str, Any] | None:
    """Return the strategy to use as JSON, of variants from simple to complicated; None where all are out.

    `against` is what it replaces: the simplest that fits, or a more complicated one that is clearly faster than that;
    the fastest of the others where it is the simplest itself, None without another. `time_over` is its time over that
    one's, with the 95 % interval; `no_difference`: the interval holds 1.
    """
    excluded = {v.name: why for v in variants if (why := _why_out(v, limit_gb))}
    able = [v for v in variants if v.name not in excluded]
    if not able:
        return None
    faster = able[0]
    for other in able[1:]:
        found = over(runs[other.name], runs[faster.name], tests=len(able) - 1)
        if found.ratio < 1 - _WORTH_PCT / 100 and found.faster:
            faster = other
    simpler = _fastest(able[: able.index(faster)])
    chosen = simpler if simpler and (simpler.step_ns or 0) < (faster.step_ns or 0) else faster
    against = faster if chosen is not faster else able[0] if chosen is not able[0] else _fastest(able[1:])
    margin = over(runs[chosen.name], runs[against.name]) if against else None
    barred = [v.name for v in variants[: variants.index(chosen)] if v.name in excluded]
    if chosen is not faster:
        why = f"simpler than {faster.name} and its step is shorter; that is clearly faster than {able[0].name}"
    elif chosen is not able[0]:
        why = f"clearly faster than {able[0].name}, the simplest that can"
    elif len(able) == 1:
        why = "nothing else can be used"
    else:
        why = f"the simplest{' that can' if barred else ''}; nothing is clearly faster"
    return {
        "series": chosen.name,
        "reason": f"{' and '.join(barred)} cannot be used; {why}" if barred else why,
        "against": against.name if against else None,
        "time_over": margin.ratio if margin else None,
        "time_over_low": margin.low if margin else None,
        "time_over_high": margin.high if margin else None,
        "no_difference": margin is not None and not (margin.slower or margin.faster),
        "peak_memory_gb": chosen.peak_memory_gb,
        "memory_limit_gb": limit_gb,
        "excluded": excluded,
    }


def _fastest(variants: Sequence[VariantResult]) -> VariantResult | None:
    return min(variants, key=lambda v: v.step_ns or 0, default=None)


def _why_out(v: VariantResult, limit_gb: float | None) -> str | None:
    if v.status != "measured" or v.step_ns is None:
        return f"{v.status}: {v.reason}"
    if limit_gb and v.peak_memory_gb and v.peak_memory_gb > _FULL * limit_gb:
        return f"it takes {_size(v.peak_memory_gb)}, more than {100 * _FULL:.0f} % of the {_size(limit_gb)} of a rank"
    if v.out:
        return f"its results differ ({v.agreement.why if v.agreement else 'unknown why'})"
    return None


def strategy_sentences(found: Mapping[str, Any] | None, variants: Sequence[VariantResult]) -> list[str]:
    """Return the recommendation in words: what to use and why, its margin, its memory, and what is out."""
    if found is None:
        return ["no strategy fits and computes the same; `stepscope predict strategy` covers other devices"]
    lines = [f"use {found['series']}: {found['reason']}"]
    if found["against"] is not None and found["time_over"] is not None:
        interval = f"[{found['time_over_low']:.2f}, {found['time_over_high']:.2f}]"
        noise = "no difference beyond the noise: " if found["no_difference"] else ""
        lines.append(f"{noise}its step takes {found['time_over']:.2f} x {interval} the time of {found['against']}")
    if found["peak_memory_gb"]:
        of = f" of {_size(found['memory_limit_gb'])}" if found["memory_limit_gb"] else ""
        able = {v.name: v.peak_memory_gb for v in variants if v.name not in found["excluded"] and v.peak_memory_gb}
        least = min(able, key=able.__getitem__)
        less = "" if least == found["series"] else f"; least: {least} with {_size(able[least])}"
        lines.append(f"it takes {_size(found['peak_memory_gb'])}{of} a rank{less}")
    else:
        lines.append("memory is not known here")
    measured = {v.name for v in variants if v.step_ns is not None}
    return lines + [f"{name} is out: {why}" for name, why in found["excluded"].items() if name in measured]
