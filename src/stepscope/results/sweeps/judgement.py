"""How did each variant of a sweep do? Its time, memory and results beside those of the first."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.results.sweeps.agreement import Agreement, Check, agreement
from stepscope.results.sweeps.gain import Gain, Row, gain
from stepscope.units import ns_of_ms

OTHER_SAMPLES = "its steps take other samples"
_STATUS = {"not_measured": "not measured", "out_of_memory": "out of memory", "failed": "failed"}


@dataclass(frozen=True)
class VariantResult:
    """One variant."""

    name: str
    #: measured, not measured, out of memory, failed
    status: str
    reason: str | None = None
    step_ns: int | None = None
    gain: Gain | None = None
    agreement: Agreement | None = None
    mfu: float | None = None
    #: allocated on the device; on the CPU, what the process grew by
    peak_memory_gb: float | None = None
    #: what the device's allocator held; None on the CPU
    reserved_memory_gb: float | None = None
    first_step_ns: int | None = None

    @property
    def out(self) -> bool:
        """Return whether its results differ."""
        return self.agreement is not None and self.agreement.agrees is False


def variant_result(
    variant: Mapping[str, Any],
    row: Row | None,
    first: Row | None,
    *,
    sweep: Mapping[str, Any],
    peak_flops_per_s: float | None,
    agree_with: Row | None = None,
) -> VariantResult:
    """Return how a variant did against the first measured one; `row` is None where it has no measurement.

    Results are compared with those of `agree_with`, where that is not the first; the peak is that of all devices.
    """
    refused = sweep["refusals"].get(variant["name"])
    status = "measured" if row and not refused else _STATUS[refused["what"]] if refused else "not measured"
    reason = refused["reason"] if refused else None if row else "the sweep ended before"
    if row is None or first is None:
        return VariantResult(variant["name"], status, reason)
    summary = row["summary"]
    step_ms = median(t for run in row["samples_ms"] for t in run)
    on_device = None if variant.get("graph_memory") else summary.get("peak_memory_allocated_gb")
    return VariantResult(
        name=variant["name"],
        status=status,
        reason=reason,
        step_ns=ns_of_ms(step_ms),
        gain=gain(row, first),
        agreement=_agreement(variant, row, agree_with or first, sweep),
        mfu=_mfu(summary["flops_per_step"], step_ms, peak_flops_per_s),
        peak_memory_gb=on_device or summary.get("peak_host_memory_gb"),
        reserved_memory_gb=summary.get("peak_memory_reserved_gb"),
        first_step_ns=ns_of_ms(_checks(row)[0]["first_step_ms"]),
    )


def _mfu(flops: float | None, step_ms: float, peak_flops_per_s: float | None) -> float | None:
    return flops / (step_ms / 1e3) / peak_flops_per_s if flops and peak_flops_per_s else None


def _agreement(variant: Mapping[str, Any], row: Row, first: Row, sweep: Mapping[str, Any]) -> Agreement:
    if variant.get("other_samples"):
        return Agreement(None, None, None, OTHER_SAMPLES)
    in_halves = sweep["reference"] == "halves"
    unchanged = row if in_halves else first
    return agreement(
        _checks(row),
        row["reference"] if in_halves else _checks(first)[0],
        repeats=_checks(unchanged),
        name=unchanged["name"],
        tolerance=variant.get("tolerance") or sweep["tolerance"],
        reordered=sweep.get("reordered"),
    )


def _checks(row: Row) -> Sequence[Check]:
    found: Sequence[Check] = row["checks"] if "checks" in row else [row["check"]]
    return found
