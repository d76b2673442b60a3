"""What did Nsight Compute measure, where no trace says what else ran? Its launches by name, the longest first."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from stepscope.analyze.kernels.kernels import Kernel
from stepscope.analyze.kernels.roofline import Bound, bounds_of_use
from stepscope.cost.operators.kernel_names import kernel_class
from stepscope.run.measured_kernels import MeasuredLaunches
from stepscope.trace.nsight.ncu_metrics import KernelMetrics


def measured_kernels(measured: Sequence[MeasuredLaunches]) -> tuple[Kernel, ...]:
    """Return the measured launches of each name as one kernel: counts and sums over them, means weighted by time.

    A launch is measured alone, with the clocks held, so its time is not that of training. Times are NaN where durations
    were not among the metrics; every launch then counts alike.
    """
    by_name: dict[str, list[KernelMetrics]] = {}
    for one in measured:
        for launch in one.launches:
            by_name.setdefault(launch.name, []).append(launch)
    all_ns = sum(launch.duration_ns or 0.0 for launches in by_name.values() for launch in launches)
    kernels = [_kernel(name, launches, all_ns) for name, launches in by_name.items()]
    return tuple(sorted(kernels, key=lambda k: (0.0 if math.isnan(k.total_ns) else -k.total_ns, k.name)))


def _kernel(name: str, launches: Sequence[KernelMetrics], all_ns: float) -> Kernel:
    took_ns = [launch.duration_ns for launch in launches if launch.duration_ns is not None]
    timed = len(took_ns) == len(launches)
    took_ns = took_ns if timed else [1.0] * len(launches)
    total_ns = sum(took_ns) if timed else math.nan
    kind = kernel_class(name)

    def mean(metric: str) -> float | None:
        values = [(getattr(launch, metric), ns) for launch, ns in zip(launches, took_ns, strict=True)]
        return _weighted((value, ns) for value, ns in values if value is not None)

    sm_pct, memory_pct, dram_pct = mean("sm_pct"), mean("memory_pct"), mean("dram_pct")
    used = [math.nan if pct is None else pct for pct in (sm_pct, dram_pct if memory_pct is None else memory_pct)]
    bound = Bound(int(bounds_of_use(np.array(used[:1]), np.array(used[1:]))[0]))
    stall, share = _longest_stall(launches, took_ns)
    moved = [(launch.dram_bytes, launch.duration_ns) for launch in launches if launch.dram_bytes and launch.duration_ns]
    occupancy_pct = mean("occupancy_pct")
    return Kernel(
        name=name,
        family=kind.family.value,
        count=float(len(launches)),
        total_ns=total_ns,
        mean_ns=total_ns / len(launches),
        max_ns=max(took_ns) if timed else math.nan,
        share=total_ns / all_ns if all_ns else math.nan,
        tensor_core=kind.tensor_core,
        precision=kind.dtype,
        tflops=None,
        gb_per_s=sum(size for size, _ in moved) / sum(ns for _, ns in moved) if moved else None,
        bound=bound.text,
        bound_from=None if bound == Bound.NONE else "measured",
        occupancy_pct=occupancy_pct,
        occupancy_from=None if occupancy_pct is None else "measured",
        sm_pct=sm_pct,
        dram_pct=dram_pct,
        tensor_pct=mean("tensor_pct"),
        stall=stall,
        stall_share=share,
        measured_share=1.0,
    )


def _longest_stall(launches: Sequence[KernelMetrics], took_ns: Sequence[float]) -> tuple[str | None, float | None]:
    """Return what the warps of all launches waited for most, and its share of their waiting."""
    waited: dict[str, float] = {}
    for launch, ns in zip(launches, took_ns, strict=True):
        for reason, share in launch.stalls:
            waited[reason] = waited.get(reason, 0.0) + share * ns
    total = sum(waited.values())
    if not total:
        return None, None
    reason = max(waited, key=lambda name: waited[name])
    return reason, waited[reason] / total


def _weighted(values: Iterable[tuple[float, float]]) -> float | None:
    pairs = list(values)
    weight = sum(ns for _, ns in pairs)
    return sum(value * ns for value, ns in pairs) / weight if weight else None
