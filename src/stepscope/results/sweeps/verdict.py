"""What does a sweep recommend? Every variant judged against the first, and the advice."""

from collections.abc import Mapping
from typing import Any

from stepscope.cost.chips import look_up, mfu_peak
from stepscope.dataclass import dataclass
from stepscope.results.sweeps.advice import communication_saved, held_memory, memory_advice, size_advice, time_advice
from stepscope.results.sweeps.judgement import VariantResult, variant_result
from stepscope.results.sweeps.strategy import Recommendation, recommendation, strategy_sentences


@dataclass(frozen=True)
class Verdict:
    """All variants and the advice; `chosen` is None where nothing was measured."""

    variants: tuple[VariantResult, ...]
    chosen: str | None
    advice: tuple[str, ...]
    #: why there is no MFU, or what it is measured against
    mfu_reason: str | None
    #: of strategies: the one to take, with its margin and what is out
    recommendation: Recommendation | None = None


def sweep_verdict(document: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a sweep's results."""
    sweep, rows = document["sweep"], {row["name"]: row for row in document["series"]}
    peak, mfu_reason = _peak(document["environment"], sharing=bool(sweep.get("method", {}).get("share_devices")))
    measured = [v for v in sweep["variants"] if v["name"] in rows]
    first = rows[measured[0]["name"]] if measured else None
    # What others are held against is exact: of the sweep's own tolerance, where one such was measured.
    exact = next((rows[v["name"]] for v in measured if not v.get("tolerance")), first)
    every = tuple(
        variant_result(v, rows.get(v["name"]), first, sweep=sweep, peak_flops_per_s=peak, agree_with=exact)
        for v in sweep["variants"]
    )
    if first is None:
        return Verdict(every, None, ("nothing was measured",), mfu_reason)
    if sweep["name"] == "strategy":
        return _strategies(document, every, rows, mfu_reason)
    reference = next(v for v in every if v.name == first["name"])
    rest = [v for v in every if v.gain and v is not reference]
    once_of = {v["name"]: v["once"] for v in sweep["variants"] if v.get("once")}
    if sweep["name"] == "batch-size":
        chosen, advice = size_advice(reference, rest, rows)
    elif sweep["goal"] == "memory":
        chosen, advice = memory_advice(reference, [v for v in rest if v.name not in once_of])
    else:
        chosen, advice = time_advice(reference, rest, rows)
    if sweep["name"] == "accumulation":
        advice += communication_saved(reference, rest, rows, once_of=once_of)
    if sweep["name"] == "allocator":
        advice += held_memory(reference, rest)
    return Verdict(every, chosen, tuple(advice), mfu_reason)


def _strategies(
    document: Mapping[str, Any], every: tuple[VariantResult, ...], rows: Mapping[str, Any], mfu_reason: str | None
) -> Verdict:
    limit_bytes = document["sweep"]["method"].get("memory_limit_bytes")
    limit_gb = limit_bytes / 1e9 if limit_bytes else document["environment"].get("device_memory_gb")
    runs = {name: row["samples_ms"] for name, row in rows.items()}
    found = recommendation(every, runs, limit_gb=limit_gb)
    return Verdict(every, found.series if found else None, tuple(strategy_sentences(found, every)), mfu_reason, found)


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
