"""Large exports and logs take memory by what is kept of them, not by how they are read."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trace.nsight.kineto_as_nsys import MACHINE, Export

from stepscope.trace.nsight import overview, read_nsys

CHUNK = 100
KB = 1_000
PROCESSES = (7, 9)
RANGES_PER_KERNEL = 3


def export_of(path: Path, kernels: int) -> Path:
    """Write an export of two processes in which every range has a text of its own."""
    export = Export(path)
    export.clock(1_000_000)
    launch, name = export.text("cudaLaunchKernel"), export.text("gemm")
    for i in range(kernels):
        process, at = PROCESSES[i % 2], 1000 * i
        thread = MACHINE | process << 24 | process
        export.insert("CUPTI_ACTIVITY_KIND_RUNTIME", at, at + 10, 0, thread, i + 1, launch, 0, None)
        where = at + 100, at + 900, i % 2, 1, 7, i + 1, MACHINE | process << 24
        export.insert("CUPTI_ACTIVITY_KIND_KERNEL", *where, name, name, None, 32, 1, 2, 3, 4, 5, 6, 0, 16, None)
        for depth in range(RANGES_PER_KERNEL):
            text = f"aten::mm, op_id = {RANGES_PER_KERNEL * i + depth}"
            export.insert("NVTX_EVENTS", at + depth, at + 50 - depth, 59, text, None, thread, 0, None)
    export.close()
    return path


def peak_of(work: Callable[[], object]) -> int:
    """Return the most that was allocated at once, beyond what was before."""
    work()  # imports and caches are filled
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small export and one of five times its rows."""
    folder = tmp_path_factory.mktemp("exports")
    return export_of(folder / "small.sqlite", 400), export_of(folder / "large.sqlite", 2000)


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.trace.sqlite_file._CHUNK_ROWS", CHUNK)
    monkeypatch.setattr("stepscope.trace.sqlite_file._BATCH_PAGES", 4)


def test_look_into_an_export_takes_the_same_memory_whatever_its_size(exports: tuple[Path, Path]) -> None:
    small, large = exports
    assert peak_of(lambda: overview(large)) < 1.2 * peak_of(lambda: overview(small)) + 20 * KB


@pytest.mark.slow
def test_tables_take_little_more_than_their_columns_while_they_are_built(exports: tuple[Path, Path]) -> None:
    small, large = (peak_of(lambda path=path: read_nsys(path)) for path in exports)  # type: ignore[misc]
    more_rows = (2 + RANGES_PER_KERNEL) * 1600
    traces = read_nsys(exports[1])
    kept = sum(array.nbytes for t in traces for name, array in t.columns.items() if name not in ("ph", "offset"))
    kept += sum(one.rows.nbytes + one.values.nbytes for t in traces for one in t.args.values())
    per_row = kept / sum(t.num_events for t in traces)
    assert (large - small) / more_rows < 2 * per_row
