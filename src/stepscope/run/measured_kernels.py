"""Kernels as Nsight Compute measured them, from the files of a run folder."""

from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import StepscopeError
from stepscope.run.imports.detect import beside
from stepscope.run.imports.nsight import NSIGHT_COMPUTE
from stepscope.trace.nsight.ncu_csv import read_ncu_csv
from stepscope.trace.nsight.ncu_metrics import KernelMetrics


@dataclass(frozen=True)
class MeasuredLaunches:
    """The launches that one file holds, in their order."""

    file: str
    rank: int | None
    """whose they are; None where the file does not say: then they are those of any rank"""
    launches: tuple[KernelMetrics, ...]


def measured_launches(folder: Path) -> tuple[tuple[MeasuredLaunches, ...], list[str]]:
    """Return what the files of Nsight Compute in a run folder measured, and a line for each that has a fault."""
    found, lines = [], []
    for one in beside(folder, NSIGHT_COMPUTE.id):
        try:
            read = read_ncu_csv(one.path)
        except StepscopeError as error:
            lines.append(f"not read: {error}")
            continue
        found.append(MeasuredLaunches(one.path.name, one.rank, read.launches))
        if read.unusable:
            lines.append(f"{one.path.name}: {read.unusable:,} values out of range or no numbers; taken as unknown")
    return tuple(found), lines
