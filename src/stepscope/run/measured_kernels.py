"""Kernels as Nsight Compute measured them, from the files of a run folder."""

from collections.abc import Collection
from pathlib import Path

from stepscope.dataclass import dataclass
from stepscope.errors import StepscopeError
from stepscope.run.imports.detect import beside, others_in
from stepscope.trace.nsight.magic import NCU_REPORT
from stepscope.trace.nsight.ncu_metrics import KernelMetrics


@dataclass(frozen=True)
class MeasuredLaunches:
    """The launches that one file holds, in their order."""

    file: str
    rank: int | None
    """whose they are; None where the file does not say: then they are those of any rank"""
    launches: tuple[KernelMetrics, ...]


def measured_launches(folder: Path, *, but: Collection[str] = ()) -> tuple[tuple[MeasuredLaunches, ...], list[str]]:
    """Return what the files of Nsight Compute in a run folder measured, and a line for each that has a fault; files
    named in `but` are known to be something else.
    """
    if not others_in(folder, but=but):
        return (), []
    from stepscope.run.imports.nsight import NSIGHT_COMPUTE, NSIGHT_COMPUTE_REPORT  # only where there may be such
    from stepscope.trace.nsight.ncu_csv import read_ncu_csv
    from stepscope.trace.nsight.outside_tool import exported_metrics

    found, lines = [], []
    tables = beside(folder, NSIGHT_COMPUTE.id, but=but)
    named = {one.path.name for one in tables}
    reports = [one for one in beside(folder, NSIGHT_COMPUTE_REPORT.id, but=but) if not _is_exported(one.path, named)]
    for one in (*tables, *reports):
        try:
            read = read_ncu_csv(exported_metrics(one.path) if one in reports else one.path)
        except StepscopeError as error:
            lines.append(f"not read: {error}")
            continue
        found.append(MeasuredLaunches(one.path.name, one.rank, read.launches))
        if read.unusable:
            lines.append(f"{one.path.name}: {read.unusable:,} values out of range or no numbers; taken as unknown")
    return tuple(found), lines


def _is_exported(report: Path, tables: set[str]) -> bool:
    """Return whether a report lies beside its own table, which is read instead."""
    from stepscope.run.imports.nsight import NSIGHT_COMPUTE

    stem = report.name.removesuffix(NCU_REPORT)
    return f"{stem}.csv" in tables or f"{stem}.{NSIGHT_COMPUTE.ending}" in tables
