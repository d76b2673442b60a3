"""Was a rank's device held back: clocks, power, heat, other processes on it?

From the recorder's samples beside the steps. Reasons that are no loss (idle, clocks that somebody set) do not count
as throttling. Memory in use on the device beyond what this job's ranks have reserved there belongs to others.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.run.rank import rank_ranges
from stepscope.run.side_files import Telemetry
from stepscope.run.step_log import StepLog
from stepscope.stats.robust import median
from stepscope.units import readable_bytes

_NO_LOSS = frozenset(("idle", "application_clocks_setting", "display_clock_setting", "sync_boost"))
# per rank on the device: contexts and libraries of a process take a gigabyte or more that no allocator knows
_MIN_OTHERS_BYTES = 2 << 30


@dataclass(frozen=True)
class DeviceState:
    """One rank's device through the job; None where the driver did not say."""

    rank: int
    device: str | None
    num_samples: int
    #: median while in use
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    power_w: float | None
    power_limit_w: float | None
    #: the highest
    temperature_c: float | None
    utilization_pct: float | None
    #: samples with a reason that costs speed
    throttled_pct: float | None
    #: by reason: percent of the samples
    throttle_reasons: dict[str, float]
    #: in use on the device and not by this job
    others_bytes: int | None
    #: other ranks of this job on the same device
    shared_with: tuple[int, ...] = ()

    @property
    def held_back(self) -> str | None:
        """Return by what the device is slowed in a good part of the samples, None where it is not."""
        if self.throttled_pct is None or self.throttled_pct < 100 * 0.2:
            return None
        reasons = ", ".join(self.throttle_reasons)
        clock = f", {self.sm_clock_mhz:.0f} of {self.max_sm_clock_mhz:.0f} MHz" if self._clocks_known else ""
        return f"throttled ({reasons}) in {self.throttled_pct:.0f} % of the samples{clock}"

    @property
    def _clocks_known(self) -> bool:
        return self.sm_clock_mhz is not None and self.max_sm_clock_mhz is not None


def device_states(telemetry: Sequence[Telemetry], logs: Sequence[StepLog]) -> tuple[DeviceState, ...]:
    """Return the state of each rank's device, by rank."""
    own = {log.rank: _reserved_bytes(log) for log in logs}
    on_device: dict[Any, list[int]] = {}
    for each in telemetry:
        on_device.setdefault(_device_id(each), []).append(each.rank)
    return tuple(
        _state(t, {rank: own.get(rank) for rank in on_device[_device_id(t)]})
        for t in sorted(telemetry, key=lambda t: t.rank)
    )


def _device_id(t: Telemetry) -> Any:
    return t.device.get("uuid") or t.rank


def device_warnings(states: Sequence[DeviceState]) -> list[str]:
    """Return a line for each device that is held back or shared with others."""
    lines = [f"rank {s.rank}: its device is {s.held_back}" for s in states if s.held_back]
    lines += [
        f"rank {s.rank}: other processes hold {readable_bytes(s.others_bytes)} of its device's memory: "
        "what they run there is in no trace"
        for s in states
        if s.others_bytes
    ]
    together = sorted({tuple(sorted((s.rank, *s.shared_with))) for s in states if s.shared_with})
    return lines + [
        f"ranks {rank_ranges(ranks)} share one device: what one computes delays the others, so their waits, transfers "
        "and idle time hold its work, and work moved from one to another saves less than on devices of their own"
        for ranks in together
    ]


def slower_clock(state: DeviceState, others: Sequence[DeviceState]) -> str | None:
    """Return how much slower a device's clock is than the others', None where it is not."""
    clocks = [s.sm_clock_mhz for s in others if s.sm_clock_mhz is not None and s.rank != state.rank]
    usual = median(clocks) if clocks else None
    if usual is None or state.sm_clock_mhz is None or state.sm_clock_mhz >= 0.95 * usual:
        return None
    return f"{state.sm_clock_mhz:.0f} MHz, the others {usual:.0f}"


def _state(t: Telemetry, own_bytes: dict[int, int | None]) -> DeviceState:
    in_use = np.array(["idle" not in (r or ()) for r in t.reasons], bool)
    busy = in_use if in_use.any() else ~in_use
    reasons = [r - _NO_LOSS for r, is_busy in zip(t.reasons, busy, strict=True) if is_busy and r is not None]
    counts = Counter(reason for each in reasons for reason in each)
    all_of_them = np.ones(len(t), bool)
    used, known = _values(t, "memory_used_bytes", all_of_them), [b for b in own_bytes.values() if b is not None]
    others = int(median(used)) - sum(known) if len(used) and len(known) == len(own_bytes) else None
    hottest = _values(t, "temperature_c", all_of_them)
    least = _MIN_OTHERS_BYTES * len(own_bytes)
    return DeviceState(
        rank=t.rank,
        device=str(t.device["name"]) if t.device.get("name") else None,
        num_samples=len(t),
        sm_clock_mhz=_median(_values(t, "sm_clock_mhz", busy)),
        max_sm_clock_mhz=t.device.get("max_sm_clock_mhz"),
        power_w=_median(_values(t, "power_w", busy)),
        power_limit_w=t.device.get("power_limit_w"),
        temperature_c=float(hottest.max()) if len(hottest) else None,
        utilization_pct=_mean(_values(t, "utilization_pct", all_of_them)),
        throttled_pct=100 * sum(map(bool, reasons)) / len(reasons) if reasons else None,
        throttle_reasons={reason: 100 * n / len(reasons) for reason, n in counts.most_common()},
        others_bytes=others if others is not None and others >= least else None,
        shared_with=tuple(sorted(rank for rank in own_bytes if rank != t.rank)),
    )


def _reserved_bytes(log: StepLog) -> int | None:
    reserved = log.column("memory.reserved_bytes")
    return int(np.nanmax(reserved)) if len(reserved) and not np.isnan(reserved).all() else None


def _values(t: Telemetry, column: str, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    values = t.columns[column][chosen]
    return values[~np.isnan(values)]


def _median(values: npt.NDArray[np.float64]) -> float | None:
    return median(values) if len(values) else None


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(np.mean(values)) if len(values) else None
