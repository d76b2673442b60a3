"""Which kernels took the device's time, how fast were they, and what held them back?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.analyze.host.calls import Floats, sum_by
from stepscope.analyze.kernels.call_costs import FAMILIES, PRECISIONS
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.kernels.roofline import SHORT_NS, Bound, kernel_bounds
from stepscope.cost.chips.table import Chip
from stepscope.run.device_work import Rows
from stepscope.trace.classify import EventKind

COMMUNICATION = "communication"
"""Family of kernels that only communicate."""

_KERNELS = (EventKind.KERNEL, EventKind.COMM_KERNEL)


@dataclass(frozen=True)
class Kernel:
    """All kernels of one name over the whole window; count and total are means per rank."""

    name: str
    family: str
    count: float
    total_ns: float
    mean_ns: float
    max_ns: int
    share: float
    """of the time of all kernels"""
    tensor_core: bool | None
    """None where the name of a matrix product does not tell"""
    precision: str | None
    """operand type of a matrix product"""
    tflops: float | None
    """achieved, over those of its kernels whose shapes are known; None without FLOPs or shapes"""
    gb_per_s: float | None
    """achieved, counting the least that must move"""
    bound: str | None
    """what holds most of its time back: `compute-bound`, `memory-bound`, `latency`; None for communication"""
    bound_from: str | None
    """`shapes` where the roofline decided, `family` where only the name did"""
    occupancy_pct: float | None


@dataclass(frozen=True)
class KernelTable:
    """All kernels of a run, by time. Counts and times are means per rank."""

    kernels: tuple[Kernel, ...]
    total_ns: float
    kernels_per_step: float | None
    """None without recorded steps"""
    launches_per_step: float | None
    """host calls that launched them; a graph launches many kernels by one"""
    short_count_share: float
    """share of kernels below SHORT_NS"""
    short_time_share: float
    tensor_core_share: float | None
    """share of matrix-product time on tensor cores; None without products or where no name tells"""
    memory_bound_share: float | None
    """share of compute-kernel time that is memory-bound; None without compute kernels"""

    def top(self, count: int) -> tuple[Kernel, ...]:
        """Return the kernels that took the most time."""
        return self.kernels[:count]


def kernel_table(costs: Sequence[KernelCosts], *, chip: Chip | None) -> KernelTable:
    """Return the kernels of all ranks in one table. Without a chip the bound follows from the family alone."""
    sums: dict[str, _Sums] = {}
    for one in costs:
        _add(sums, one, chip)
    n = max(len(costs), 1)
    total, count = _sum(sums.values(), "total_ns"), _sum(sums.values(), "count")
    kernels = [one.kernel(name, n, total) for name, one in sums.items()]
    per_step, launches = _launches(costs)
    return KernelTable(
        kernels=tuple(sorted(kernels, key=lambda k: (-k.total_ns, k.name))),
        total_ns=total / n,
        kernels_per_step=per_step,
        launches_per_step=launches,
        short_count_share=_sum(sums.values(), "short") / count if count else 0.0,
        short_time_share=_sum(sums.values(), "short_ns") / total if total else 0.0,
        tensor_core_share=_tensor_core_share(costs),
        memory_bound_share=_memory_bound_share(sums.values()),
    )


@dataclass
class _Sums:
    """One kernel name's sums while ranks are added."""

    family: str
    tensor_core: bool | None
    precision: str | None
    max_ns: int = 0
    numbers: dict[str, float] = field(default_factory=dict)

    def kernel(self, name: str, num_ranks: int, all_ns: float) -> Kernel:
        n = self.numbers
        bound = max(Bound, key=lambda b: n[f"bound_{b}"])
        return Kernel(
            name=name,
            family=self.family,
            count=n["count"] / num_ranks,
            total_ns=n["total_ns"] / num_ranks,
            mean_ns=n["total_ns"] / n["count"],
            max_ns=self.max_ns,
            share=n["total_ns"] / all_ns if all_ns else 0.0,
            tensor_core=self.tensor_core,
            precision=self.precision,
            tflops=n["flops"] / n["flops_ns"] / 1e3 if n["flops_ns"] else None,
            gb_per_s=n["bytes"] / n["bytes_ns"] if n["bytes_ns"] else None,
            bound=bound.text,
            bound_from=None if bound is Bound.NONE else "shapes" if n["from_shapes"] else "family",
            occupancy_pct=n["occupancy"] / n["occupancy_ns"] if n["occupancy_ns"] else None,
        )


def _add(sums: dict[str, _Sums], costs: KernelCosts, chip: Chip | None) -> None:
    """Add one rank's kernels to the sums, name by name."""
    work = costs.rank.work
    kernels = np.flatnonzero(np.isin(work.kind, _KERNELS))
    names, example, group = np.unique(work.name[kernels], return_index=True, return_inverse=True)
    explained = np.flatnonzero(costs.call[kernels] >= 0)
    example[group[explained]] = explained  # its operator tells more than the name alone
    weights = _weights(costs, kernels, chip)
    totals = {name: sum_by(group, values, len(names)) for name, values in weights.items()}
    longest = np.zeros(len(names), np.int64)
    np.maximum.at(longest, group, costs.duration_ns[kernels])
    for g, (name, i) in enumerate(zip(names.tolist(), kernels[example].tolist(), strict=True)):
        text = costs.rank.trace.strings[name]
        if text not in sums:
            sums[text] = _empty(costs, i)
        mine = sums[text]
        mine.max_ns = max(mine.max_ns, int(longest[g]))
        for key, values in totals.items():
            mine.numbers[key] = mine.numbers.get(key, 0.0) + float(values[g])


def _empty(costs: KernelCosts, i: int) -> _Sums:
    """Return empty sums with what all kernels of a name have in common."""
    communicates = costs.rank.work.kind[i] == EventKind.COMM_KERNEL
    tells = not costs.is_matmul[i] or costs.tensor_core[i] >= 0
    return _Sums(
        family=COMMUNICATION if communicates else FAMILIES[costs.family[i]].value,
        tensor_core=bool(costs.tensor_core[i] == 1) if tells else None,
        precision=PRECISIONS[costs.precision[i]] if costs.precision[i] else None,
    )


def _weights(costs: KernelCosts, kernels: Rows, chip: Chip | None) -> dict[str, Floats]:
    """Return what is summed over the kernels of a name."""
    duration = costs.duration_ns[kernels].astype(np.float64)
    flops, size = (np.nan_to_num(values[kernels]) for values in (costs.flops, costs.bytes))
    occupancy, has_occupancy = _occupancy(costs, kernels)
    bound, from_shapes = (values[kernels] for values in kernel_bounds(costs, chip=chip))
    short = duration < SHORT_NS
    return {
        "count": np.ones(len(kernels)),
        "total_ns": duration,
        "short": short.astype(np.float64),
        "short_ns": duration * short,
        "flops": flops,
        "flops_ns": duration * (flops > 0),
        "bytes": size,
        "bytes_ns": duration * (size > 0),
        "occupancy": occupancy * duration,
        "occupancy_ns": duration * has_occupancy,
        "from_shapes": from_shapes.astype(np.float64),
        **{f"bound_{b}": duration * (bound == b) for b in Bound},
    }


def _occupancy(costs: KernelCosts, kernels: Rows) -> tuple[Floats, Floats]:
    """Return the recorded occupancy in percent, and 1 where there is one."""
    missing = -1  # as float64 bits that is a NaN, which no trace holds
    bits = costs.rank.trace.arg("occupancy_pct").at(costs.rank.work.row[kernels], missing=missing)
    has = bits != missing
    return np.where(has, bits.view(np.float64), 0.0), has.astype(np.float64)


def _launches(costs: Sequence[KernelCosts]) -> tuple[float | None, float | None]:
    """Return kernels and launching calls per step, over ranks and steps."""
    steps = sum(len(one.rank.steps) for one in costs)
    kernels = launches = 0
    for one in costs:
        work = one.rank.work
        mine = (work.step >= 0) & np.isin(work.kind, _KERNELS)
        kernels += int(mine.sum())
        launches += len(np.unique(work.launch_row[mine]))
    return (kernels / steps, launches / steps) if steps else (None, None)


def _tensor_core_share(costs: Sequence[KernelCosts]) -> float | None:
    """Return the share of matrix-product time on tensor cores, among kernels whose names tell."""
    on = off = 0
    for one in costs:
        product = one.precision > 0
        on += int(one.duration_ns[product & (one.tensor_core == 1)].sum())
        off += int(one.duration_ns[product & (one.tensor_core == 0)].sum())
    return on / (on + off) if on + off else None


def _memory_bound_share(sums: Iterable[_Sums]) -> float | None:
    by_bound = {b: _sum(sums, f"bound_{b}") for b in (Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY)}
    total = sum(by_bound.values())
    return by_bound[Bound.MEMORY] / total if total else None


def _sum(sums: Iterable[_Sums], key: str) -> float:
    return sum(one.numbers[key] for one in sums)
