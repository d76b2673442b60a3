"""Idle time without a CUDA call: what Nsight Systems recorded of the host besides is named."""

from pathlib import Path

import pytest
from tests.trace.nsight.kineto_as_nsys import MACHINE, Export

import stepscope

LOOP, OTHER = MACHINE | 7 << 24 | 70, MACHINE | 7 << 24 | 71
MS = 1_000_000


def export_with_holes(path: Path) -> Export:
    """Return 100 kernels of 1 ms, launched 10 ms after one another: in between, the loop's thread makes no call."""
    export = Export(path)
    export.clock(1_000_000)
    launch, name = export.text("cudaLaunchKernel_v7000"), export.text("gemm")
    for n in range(100):
        at = 10 * MS * (n + 1)
        export.insert("CUPTI_ACTIVITY_KIND_RUNTIME", at, at + 5_000, 0, LOOP, n, launch, 0, None)
        where = at + 10_000, at + MS, 0, 1, 7, n, MACHINE | 7 << 24
        export.insert("CUPTI_ACTIVITY_KIND_KERNEL", *where, name, name, None, 32, 1, 2, 3, 4, 5, 6, 0, 16, None)
    return export


def reason(export: Export, path: Path) -> str:
    export.close()
    return str(stepscope.load(path, cache=False).document["verdict_reason"])


def test_calls_of_the_system_are_named_with_their_time(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    export = export_with_holes(path)
    export.db.execute("CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)")
    for n in range(99):
        at = 10 * MS * (n + 1)
        export.insert("OSRT_API", at + 2 * MS, at + 8 * MS, LOOP, export.text("getc"))
        export.insert("OSRT_API", at + 8 * MS, at + 10 * MS, LOOP, export.text("read"))
        export.insert("OSRT_API", at, at + 10 * MS, OTHER, export.text("poll"))
    assert "have no known cause; the host was in getc 594 ms, read 198 ms;" in reason(export, path)


@pytest.mark.parametrize("in_holes", [True, False])
def test_cpu_samples_in_the_holes_are_named(tmp_path: Path, in_holes: bool) -> None:
    path = tmp_path / "report.sqlite"
    export = export_with_holes(path)
    export.db.execute("CREATE TABLE COMPOSITE_EVENTS (id INTEGER, start INTEGER, globalTid INTEGER)")
    export.db.execute("CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, symbol INTEGER, stackDepth INTEGER)")
    for n in range(99):
        at = 10 * MS * (n + 1) + (5 * MS if in_holes else MS // 2)
        export.insert("COMPOSITE_EVENTS", n, at, LOOP)
        leaf = "check<float>(float const*, int)" if n % 4 else "main"
        export.insert("SAMPLING_CALLCHAINS", n, export.text(leaf), 0)
        export.insert("SAMPLING_CALLCHAINS", n, export.text("_start"), 1)
    said = reason(export, path)
    assert "have no known cause" in said
    assert ("; CPU samples of the host: check 75 %, main 25 %;" in said) == in_holes
