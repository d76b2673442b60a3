"""Which launch that Nsight Compute measured is each kernel of a rank?

By name, grid and block, and among those that agree in all three by their order: the k-th launch is the k-th kernel.
Kernels beyond the last measured launch did the same work: the measured ones count for them, one after the other.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stepscope.analyze.host.calls import Floats
from stepscope.analyze.kernels.measured_names import kernels_named
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import Run
from stepscope.run.measured_kernels import MeasuredLaunches
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.nsight.ncu_metrics import KernelMetrics
from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Int64s

_Class = tuple[str, str | None, str | None]
"""name, grid and block"""


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredRows(ArrayRecord):
    """The launch of Nsight Compute that stands for each row of a rank's work."""

    launch: Int64s
    """index into `launches`, -1 where none was measured"""
    launches: tuple[KernelMetrics, ...]
    unjoined: int
    """measured launches that no kernel of the rank is"""

    def values(self, metric: str) -> Floats:
        """Return a metric of each row, NaN where it was not measured."""
        by_launch = [getattr(launch, metric) for launch in self.launches]
        known = np.array([np.nan if value is None else value for value in by_launch] + [np.nan], np.float64)
        return known[self.launch]

    @cached_property
    def dram_gb_per_s(self) -> Floats:
        """Return how fast each row moved bytes of the device's memory, as measured."""
        return self.values("dram_bytes") / self.values("duration_ns")


def measured_rows(rank: Rank, measured: Sequence[MeasuredLaunches]) -> MeasuredRows | None:
    """Return what was measured of a rank's kernels, None where nothing was."""
    launches = [launch for one in measured if one.rank in (None, rank.rank) for launch in one.launches]
    if not launches:
        return None
    work = rank.work
    rows = np.flatnonzero(np.isin(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL)))
    classes = _classes(rank, rows)
    meant = kernels_named((launch.name for launch in launches), (name for name, _, _ in classes))
    of_class: dict[_Class, list[int]] = {}
    for i, launch in enumerate(launches):
        if launch.name in meant:
            found = _class_of(meant[launch.name], launch, classes)
            if found is not None:
                of_class.setdefault(found, []).append(i)
    out = np.full(len(work), -1, np.int64)
    for kind, mine in of_class.items():
        at = classes[kind]
        out[at] = np.array(mine, np.int64)[np.arange(len(at)) % len(mine)]
    return MeasuredRows(out, tuple(launches), len(launches) - sum(map(len, of_class.values())))


def measured_warnings(run: Run) -> list[str]:
    """Return a line where Nsight Compute measured launches that are no kernels of the run."""
    found = [rows for rank in run.ranks if (rows := measured_rows(rank, run.measured)) is not None]
    total = sum(len(one.launches) for one in run.measured)
    lost = min((rows.unjoined for rows in found), default=total)
    if not lost:
        return []
    return [
        f"{lost:,} of {total:,} launches that Nsight Compute measured are no kernels of this run (name, grid, block): "
        "they were of another job, other sizes or steps that are not in the traces"
    ]


def _classes(rank: Rank, rows: Int64s) -> dict[_Class, Int64s]:
    """Return the rows of each kind of launch, by start."""
    trace, work = rank.trace, rank.work
    grid, block = (trace.arg(name).at(work.row[rows], missing=NO_STRING) for name in ("grid", "block"))
    keys = np.stack((work.name[rows].astype(np.int64), grid, block), axis=1)
    unique, back = np.unique(keys, axis=0, return_inverse=True)
    back = back.reshape(-1)
    order = np.argsort(back, kind="stable")
    cuts = np.searchsorted(back[order], np.arange(len(unique) + 1))
    return {
        (trace.text(name) or "", trace.text(g), trace.text(b)): rows[order[cuts[i] : cuts[i + 1]]]
        for i, (name, g, b) in enumerate(unique.tolist())
    }


def _class_of(name: str, launch: KernelMetrics, classes: dict[_Class, Int64s]) -> _Class | None:
    """Return the kind of launch that a measured one is of; any of that name where the trace has no grids."""
    exact = name, _text(launch.grid), _text(launch.block)
    if exact in classes:
        return exact
    unknown = name, None, None
    if unknown in classes:
        return unknown
    named = [kind for kind in classes if kind[0] == name] if launch.grid is None else []
    return named[0] if len(named) == 1 else None


def _text(sizes: tuple[int, ...] | None) -> str | None:
    return None if sizes is None else str(list(sizes))
