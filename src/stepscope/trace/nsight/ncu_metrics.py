"""What do the metrics of Nsight Compute say of one launch? Its names, old and new, raw and for people, to one record.

occupancy      sm__warps_active.avg.pct_of_peak_sustained_active            Achieved Occupancy
DRAM use       dram__throughput.avg.pct_of_peak_sustained_elapsed           DRAM Throughput (%)
tensor pipe    sm__pipe_tensor*_cycles_active.avg.pct_of_peak_sustained_*
SM use         sm__throughput.avg.pct_of_peak_sustained_elapsed             Compute (SM) Throughput, SOL SM
stalls         smsp__average_warps_issue_stalled_<reason>_per_issue_active.ratio, and the sampled ones
"""

import re
from collections.abc import Mapping

from stepscope.dataclass import dataclass

MAX_PERCENT = 1000.0
"""some percentages of peak go past 100 by a little; none by as much"""
_MAX_BYTES = 1 << 60
_MAX_NS = 1 << 60

_OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
_DRAM = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput",
)
_SM = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput",
    "SM Throughput",
    "SOL SM",
    "SM [%]",
)
_MEMORY = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput",
    "SOL Memory",
    "Memory [%]",
)
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_BYTES = ("dram__bytes.sum",)
_BYTES_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_TENSOR = re.compile(r"^sm__(?:inst_executed_)?pipe_tensor\w{0,60}\.avg\.pct_of_peak_sustained_(?:active|elapsed)$")
_STALL = re.compile(
    r"^smsp__(?:average_warps_issue_stalled_(\w{1,40}?)_per_issue_active\.ratio"
    r"|average_warp_latency_issue_stalled_(\w{1,40}?)\.ratio|pcsamp_warps_issue_stalled_(\w{1,40}?)(?:\.sum)?)$"
)
_NO_STALL = {"selected", "not_selected", "selected_not_issued"}
"""a warp that issued, or could have, is not stalled"""
_NS = {
    **dict.fromkeys(("ns", "nsecond", "nanosecond", ""), 1.0),
    **dict.fromkeys(("us", "usecond", "microsecond"), 1e3),
    **dict.fromkeys(("ms", "msecond", "millisecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
_BYTE_UNIT = re.compile(r"^([KMGT]i?|)(?:byte|B)$", re.IGNORECASE)


@dataclass(frozen=True)
class KernelMetrics:
    """One launch as Nsight Compute measured it. None where the metric was not collected."""

    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    device: int | None
    duration_ns: float | None
    occupancy_pct: float | None
    sm_pct: float | None
    """of the peak of the busiest unit of the multiprocessors"""
    memory_pct: float | None
    """of the peak of the busiest part of the memory system"""
    dram_pct: float | None
    tensor_pct: float | None
    """of the tensor pipe's peak"""
    dram_bytes: float | None
    stalls: tuple[tuple[str, float], ...]
    """reasons why warps waited, with their share, the most frequent first"""


_READ = frozenset((*_OCCUPANCY, *_DRAM, *_SM, *_MEMORY, *_DURATION, *_BYTES, *_BYTES_PARTS))


def is_read(metric: str) -> bool:
    """Return whether a metric is one that is read here; a full set has a thousand others."""
    return metric in _READ or bool(_TENSOR.match(metric) or _STALL.match(metric))


def kernel_metrics(
    name: str,
    grid: tuple[int, ...] | None,
    block: tuple[int, ...] | None,
    device: int | None,
    values: Mapping[str, tuple[float, str]],
) -> tuple[KernelMetrics, int]:
    """Return what the metrics of a launch say, by name with value and unit, and how many of them cannot be."""
    bad: list[str] = []
    tensor = [value for metric, (value, _) in values.items() if _TENSOR.match(metric)]
    sums = [_size(values, metric, bad) for metric in _BYTES_PARTS]
    parts = sum(known) if len(known := [size for size in sums if size is not None]) == len(sums) else None
    whole = next((size for metric in _BYTES if (size := _size(values, metric, bad)) is not None), None)
    metrics = KernelMetrics(
        name=name,
        grid=grid,
        block=block,
        device=device,
        duration_ns=_duration(values, bad),
        occupancy_pct=_percent(values, _OCCUPANCY, bad),
        sm_pct=_percent(values, _SM, bad),
        memory_pct=_percent(values, _MEMORY, bad),
        dram_pct=_percent(values, _DRAM, bad),
        tensor_pct=_checked(max(tensor), MAX_PERCENT, "tensor", bad) if tensor else None,
        dram_bytes=whole if whole is not None else parts,
        stalls=_stalls(values),
    )
    return metrics, len(bad)


def _percent(values: Mapping[str, tuple[float, str]], names: tuple[str, ...], bad: list[str]) -> float | None:
    for name in names:
        value, unit = values.get(name, (None, ""))
        if value is not None and unit.strip() in ("%", ""):  # `Memory Throughput` is also bytes per second
            return _checked(value, MAX_PERCENT, name, bad)
    return None


def _duration(values: Mapping[str, tuple[float, str]], bad: list[str]) -> float | None:
    for name in _DURATION:
        value, unit = values.get(name, (None, ""))
        if value is not None and unit.strip() in _NS:
            return _checked(value * _NS[unit.strip()], _MAX_NS, name, bad)
    return None


def _size(values: Mapping[str, tuple[float, str]], name: str, bad: list[str]) -> float | None:
    value, unit = values.get(name, (None, ""))
    found = _BYTE_UNIT.match(unit.strip() or "byte")
    if value is None or found is None:
        return None
    scale = found.group(1)
    return _checked(value * _SCALE.get(scale[:1].upper() + scale[1:].lower(), 1.0), _MAX_BYTES, name, bad)


def _stalls(values: Mapping[str, tuple[float, str]]) -> tuple[tuple[str, float], ...]:
    """Return the reasons of one family of metrics; they are not to be added to those of another."""
    families: list[dict[str, float]] = [{}, {}, {}]
    for metric, (value, _) in values.items():
        found = _STALL.match(metric)
        if found and value > 0:
            family = next(i for i, reason in enumerate(found.groups()) if reason)
            families[family][found.group(family + 1)] = value
    reasons = next((f for f in families if f), {})
    reasons = {reason: value for reason, value in reasons.items() if reason not in _NO_STALL}
    total = sum(reasons.values())
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return tuple((reason, value / total) for reason, value in ordered)


def _checked(value: float, most: float, name: str, bad: list[str]) -> float | None:
    if 0 <= value <= most:
        return value
    bad.append(name)
    return None
