"""Nsight's files in a run folder: exports and reports of Nsight Systems, metrics of Nsight Compute."""

from collections.abc import Callable
from pathlib import Path

from stepscope.errors import InputError
from stepscope.run.imports.format import BytesRead, Contents, FileHead, Format
from stepscope.run.sources import rank_in_header
from stepscope.trace.nsight.magic import MAGIC, NCU_REPORT, NSYS_REPORT
from stepscope.trace.nsight.ncu_csv import is_ncu_csv, read_ncu_csv
from stepscope.trace.nsight.outside_tool import export_ncu, export_nsys, require_tool


def _look_nsys(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.nsight.overview import overview  # only where there is such a file

    found = overview(path, progress=told)
    ranks = tuple(rank for header in found.headers if (rank := rank_in_header(header)) is not None)
    processes = len(found.headers)
    several = f" of {processes} processes" if processes > 1 else ""
    return Contents(f"{found.num_kernels:,} kernels{several}", ranks, whole_job=processes > 1)


def _look_ncu(path: Path, _told: BytesRead) -> Contents:
    launches = read_ncu_csv(path).launches
    if not launches:
        raise InputError(f"{path}: holds no launch; was --kernel-name or --launch-skip too narrow?")
    return Contents(f"{len(launches):,} launches of {len({launch.name for launch in launches}):,} kernels")


def _look_nsys_report(path: Path, _told: BytesRead) -> Contents:
    require_tool("nsys", path)
    return Contents("to be exported by nsys")


def _look_ncu_report(path: Path, _told: BytesRead) -> Contents:
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
    check_stored=True,
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
    check_stored=True,
    needs_rank=False,
)
