"""Nsight's files in a run folder: exports and reports of Nsight Systems, metrics of Nsight Compute."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from stepscope.errors import InputError
from stepscope.run.imports.format import Contents, FileHead, Format
from stepscope.run.sources import rank_in_header
from stepscope.trace.classify import EventKind, event_kinds
from stepscope.trace.nsight.magic import MAGIC
from stepscope.trace.nsight.ncu_csv import is_ncu_csv, read_ncu_csv
from stepscope.trace.nsight.outside_tool import NCU_REPORT, NSYS_REPORT, export_ncu, export_nsys, require_tool

_KERNELS = (EventKind.KERNEL, EventKind.COMM_KERNEL)


def _look_nsys(path: Path) -> Contents:
    from stepscope.trace.nsight.read import read_nsys  # only where there is such a file

    traces = read_nsys(path)
    kernels = sum(int(np.isin(event_kinds(trace), _KERNELS).sum()) for trace in traces)
    ranks = tuple(rank for trace in traces if (rank := rank_in_header(trace.header)) is not None)
    several = f" of {len(traces)} processes" if len(traces) > 1 else ""
    return Contents(f"{kernels:,} kernels{several}", ranks, whole_job=len(traces) > 1)


def _look_ncu(path: Path) -> Contents:
    launches = read_ncu_csv(path).launches
    if not launches:
        raise InputError(f"{path}: holds no launch; was --kernel-name or --launch-skip too narrow?")
    return Contents(f"{len(launches):,} launches of {len({launch.name for launch in launches}):,} kernels")


def _look_nsys_report(path: Path) -> Contents:
    require_tool("nsys", path)
    return Contents("to be exported by nsys")


def _look_ncu_report(path: Path) -> Contents:
    require_tool("ncu", path)
    return Contents("to be exported by ncu")


def _named(ending: str) -> Callable[[FileHead], bool]:
    return lambda head: head.name.endswith(ending)


NSIGHT_SYSTEMS = Format(
    id="nsys",
    title="Nsight Systems export",
    ending="nsys.sqlite",
    is_it=lambda head: head.start.startswith(MAGIC),
    look=_look_nsys,
    needs_rank=False,
)
NSIGHT_SYSTEMS_REPORT = Format(
    id="nsys-report",
    title="Nsight Systems report",
    ending="nsys.sqlite",
    is_it=_named(NSYS_REPORT),
    look=_look_nsys_report,
    store=export_nsys,
    needs_rank=False,
)
NSIGHT_COMPUTE = Format(
    id="ncu",
    title="Nsight Compute metrics",
    ending="ncu.csv",
    is_it=lambda head: is_ncu_csv(head.start),
    look=_look_ncu,
    needs_rank=False,
)
NSIGHT_COMPUTE_REPORT = Format(
    id="ncu-report",
    title="Nsight Compute report",
    ending="ncu.csv",
    is_it=_named(NCU_REPORT),
    look=_look_ncu_report,
    store=export_ncu,
    needs_rank=False,
)
