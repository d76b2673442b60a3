"""Exports of Nsight Systems: every row of a real one accounted for; what one without device work holds is named."""

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trace.nsight.kineto_as_nsys import MACHINE, Export

from stepscope.errors import TraceError
from stepscope.run.load import load
from stepscope.trace.nsight import read_nsys
from stepscope.trace.sqlite_file import Database, TablePages
from stepscope.trace.table import PAGE_MOVE, EventKind, Trace, event_kinds

REAL = Path(__file__).parents[2] / "data" / "nsys-h100" / "export.sqlite.gz"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nsys") / "export.sqlite"
    path.write_bytes(gzip.decompress(REAL.read_bytes()))
    return path


def by_stream(traces: tuple[Trace, ...], kind: EventKind) -> dict[tuple[int, int], tuple[int, int]]:
    """Return count and time of one kind of event by device and stream."""
    out: dict[tuple[int, int], tuple[int, int]] = {}
    for trace in traces:
        rows = np.flatnonzero(event_kinds(trace) == kind)
        keys = zip(trace["pid"][rows].tolist(), trace["tid"][rows].tolist(), strict=True)
        for key, dur in zip(keys, trace["dur_ns"][rows].tolist(), strict=True):
            count, total = out.get(key, (0, 0))
            out[key] = count + 1, total + dur
    return out


@pytest.mark.parametrize(("table", "kind"), [("KERNEL", EventKind.KERNEL), ("MEMCPY", EventKind.COPY)])
def test_counts_and_times_per_stream_equal_sql(real: Path, table: str, kind: EventKind) -> None:
    db = sqlite3.connect(real)
    query = f"SELECT deviceId, streamId, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_{table} GROUP BY 1, 2"
    said = {(device, stream): (count, total) for device, stream, count, total in db.execute(query)}
    assert said and by_stream(read_nsys(real), kind) == said


def test_copies_equal_sql_by_direction_and_bytes(real: Path) -> None:
    db = sqlite3.connect(real)
    query = "SELECT copyKind, count(*), sum(bytes), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1"
    directions = {1: "HtoD", 2: "DtoH", 8: "DtoD"}
    said = {directions[kind]: (count, size, spent) for kind, count, size, spent in db.execute(query)}
    found: dict[str, tuple[int, int, int]] = {}
    for trace in read_nsys(real):
        rows = np.flatnonzero(event_kinds(trace) == EventKind.COPY)
        for row, size in zip(rows.tolist(), trace.arg("bytes").at(rows, missing=-1).tolist(), strict=True):
            direction = (trace.text(int(trace["name"][row])) or "").split()[1]
            count, total, spent = found.get(direction, (0, 0, 0))
            found[direction] = count + 1, total + size, spent + int(trace["dur_ns"][row])
    assert found == said


def test_every_launched_kernel_finds_its_operator(real: Path) -> None:
    run = load(real, cache=False)
    assert [r.rank for r in run.ranks] == [0, 1]
    for rank in run.ranks:
        assert len(rank.work) > 500
        assert (rank.work.op_row[rank.work.launch_row >= 0] >= 0).all()
        assert rank.trace.header["nsight"]["schema"] == "3.25.0"


def small(path: Path) -> Export:
    """Return an export with one process: a launch and its kernel."""
    export = Export(path)
    export.clock(1_000_000)
    thread = MACHINE | 7 << 24 | 70
    export.insert(
        "CUPTI_ACTIVITY_KIND_RUNTIME", 100, 110, 0, thread, 1, export.text("cudaLaunchKernel_v7000_ptsz"), 0, None
    )
    kernel(export)
    return export


def kernel(export: Export, start: Any = 200, end: Any = 300, *, name: Any = None, correlation: Any = 1) -> None:
    name = export.text("gemm") if name is None else name
    where = start, end, 0, 1, 7, correlation, MACHINE | 7 << 24
    sizes = 32, 1, 2, 3, 4, 5, 6, 0, 16, None
    export.insert("CUPTI_ACTIVITY_KIND_KERNEL", *where, name, name, None, *sizes)


def read_small(export: Export, path: Path) -> Trace:
    export.close()
    (trace,) = read_nsys(path)
    return trace


def test_graphs_recorded_as_a_whole_are_kernels_and_said(tmp_path: Path) -> None:
    export = small(tmp_path / "x.sqlite")
    export.db.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, "
        "graphId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER)"
    )
    export.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 400, 900, 0, 3, 1, 7, 1, MACHINE | 7 << 24)
    trace = read_small(export, tmp_path / "x.sqlite")
    assert (event_kinds(trace) == EventKind.KERNEL).sum() == 2
    assert "CUDA graph 3" in trace.strings
    assert "--cuda-graph-trace=node" in trace.quality.notes[0]


def test_values_of_wrong_types_are_counted_and_left_out(tmp_path: Path) -> None:
    export = small(tmp_path / "x.sqlite")
    for start, end in (("soon", 5), (None, 5), (1.5, 5), (b"\0", 5), (10, None)):
        kernel(export, start, end)
    kernel(export, 500, 400)
    kernel(export, 1 << 62, (1 << 63) - 1)
    kernel(export, -(1 << 63), (1 << 63) - 1)
    kernel(export, 600, 700, name="gemm", correlation="x")
    trace = read_small(export, tmp_path / "x.sqlite")
    quality = trace.quality
    assert (quality.bad_time, quality.negative_duration, quality.far_times) == (5, 2, 1)
    assert trace.num_events == 3
    assert "unknown kernel" in trace.strings


STREAMS = (
    "CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);"
    "INSERT INTO StringIds VALUES (1, '/tmp/pid_7_stderr.log'), (2, '{}');INSERT INTO ProcessStreams VALUES (7, 1, 2);"
)
TRACED = "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COLLECT_CUDA_TRACE', 'true');"
IN_VAIN = "INSERT INTO StringIds VALUES (9, 'No CUDA events collected. Does the process use CUDA?');"
CALL = (
    "INSERT INTO StringIds VALUES (5, 'cudaMalloc_v3020');"
    f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, 0, {MACHINE | 7 << 24 | 70}, 1, 5, 0, NULL);"
)
DIAGNOSTICS = (
    "CREATE TABLE DIAGNOSTIC_EVENT (text TEXT);"
    "INSERT INTO DIAGNOSTIC_EVENT VALUES ('Profiling has started.'), ('Installed CUDA driver version (13.3) is not "
    "supported by this build of Nsight Systems. CUDA trace will be collected using libraries for driver version 12.9'),"
    "('Number of CUPTI events produced: \t31, CUPTI buffers: 49 of 50. Some CUPTI events might be missing. Again.');"
)


@pytest.mark.parametrize(
    ("change", "said", "not_said"),
    [
        ("", "is unknown), and nothing shows that CUDA was traced; record with nsys", "ended before"),
        ("DELETE FROM NVTX_EVENTS", "it holds no events, and nothing shows", "ended before"),
        (TRACED, ". CUDA tracing was requested, but no call is recorded: the program made none, ended", "was traced"),
        (CALL, ". CUDA was traced, but no kernel launch is recorded: the program ended before one, or", "made none"),
        (
            CALL + "UPDATE StringIds SET value = 'cudaLaunchKernel_v7000'; "
            "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 209",
            ". No kernel launch succeeded; cudaLaunchKernel returned CUDA error 209; fix the program's error, then",
            "lost",
        ),
        (
            f"{CALL}{DIAGNOSTICS}",
            'Nsight Systems reports "Installed CUDA driver version (13.3) is not supported by this build of Nsight '
            'Systems." and "Some CUPTI events might be missing."; update Nsight Systems or the driver',
            "Profiling has started",
        ),
        (
            IN_VAIN + STREAMS.format("Traceback:\nFileNotFoundError: train.py\n"),
            "error output has: FileNotFoundError: train.py;",
            "--trace=cuda",
        ),
        (
            TRACED + STREAMS.format("Fatal Error: compiled with -gpu=cc80\n File: a.cpp\n Line: 62\n\n"),
            "error output has: Fatal Error: compiled with -gpu=cc80;",
            "Line: 62",
        ),
    ],
)
def test_an_export_without_device_work_shows_what_was_traced(tmp_path, change, said, not_said):
    path = tmp_path / "x.sqlite"
    export = Export(path)
    export.clock(0)
    for at in (0, 100):
        export.nvtx(at, at + 50, "frame", MACHINE | 7 << 24 | 70)
    export.db.executescript(change)
    export.close()
    with pytest.raises(TraceError) as error:
        read_nsys(path)
    assert said in str(error.value) and not_said not in str(error.value) and "\n" not in str(error.value)


def test_devices_of_old_exports_are_named_once(tmp_path: Path) -> None:
    export = small(tmp_path / "x.sqlite")
    export.db.executescript(
        "DROP TABLE TARGET_INFO_GPU; CREATE TABLE TARGET_INFO_CUDA_GPU (name TEXT, numMultiprocessors INTEGER, "
        "computeCapabilityMajor INTEGER, computeCapabilityMinor INTEGER, deviceId INTEGER, pid INTEGER)"
    )
    for process in (7, 8):
        for device in (0, 1):
            export.insert("TARGET_INFO_CUDA_GPU", "Tesla V100-PCIE-32GB", 80, 7, 0, device, process)
    devices = read_small(export, tmp_path / "x.sqlite").header["deviceProperties"]
    assert [(d["id"], d["name"], d["numSms"], d["computeMajor"]) for d in devices] == [
        (0, "Tesla V100-PCIE-32GB", 80, 7),
        (1, "Tesla V100-PCIE-32GB", 80, 7),
    ]


def test_page_moves_of_unified_memory_are_named(tmp_path: Path) -> None:
    export = small(tmp_path / "x.sqlite")
    for at, kind in enumerate((1, 11, 11, 12, 13)):
        where = 1_000 + at, 1_001 + at, 0, 1, 0, 0, MACHINE | 7 << 24
        export.insert("CUPTI_ACTIVITY_KIND_MEMCPY", *where, 4096, kind, 0 if kind == 1 else 7, 2, None)
    trace = read_small(export, tmp_path / "x.sqlite")
    copies = np.flatnonzero(event_kinds(trace) == EventKind.COPY)
    assert [trace.text(int(i)) for i in trace["name"][copies]] == [
        "Memcpy HtoD (Pageable -> Device)",
        *(f"{PAGE_MOVE}{direction}" for direction in ("HtoD", "HtoD", "DtoH", "DtoD")),
    ]
    assert trace.arg("bytes").at(copies, missing=-1).tolist() == [4096] * 5


def test_nothing_is_written_beside_an_export(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    small(path).close()
    before = path.read_bytes()
    read_nsys(path)
    assert [p.name for p in tmp_path.iterdir()] == ["x.sqlite"]
    assert path.read_bytes() == before


def test_only_reading_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    small(path).close()
    with Database(path) as db:
        for statement in (f"ATTACH '{tmp_path}/canary' AS c", "CREATE TEMP TABLE t (a)", "SELECT load_extension('x')"):
            with pytest.raises(sqlite3.Error):
                db._db.execute(statement)
    assert not (tmp_path / "canary").exists()


CHUNK = 100
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


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small export and one of five times its rows."""
    folder = tmp_path_factory.mktemp("exports")
    return export_of(folder / "small.sqlite", 400), export_of(folder / "large.sqlite", 2000)


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.trace.sqlite_file._CHUNK_ROWS", CHUNK)
    monkeypatch.setattr("stepscope.trace.sqlite_file._BATCH_PAGES", 4)


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_sound_files_of_any_layout_fit(tmp_path: Path, page_bytes: int) -> None:
    path = tmp_path / "x.sqlite"
    db = sqlite3.connect(path)
    db.executescript(
        f"PRAGMA page_size = {page_bytes}; CREATE TABLE a (id INTEGER PRIMARY KEY, text TEXT);"
        "CREATE TABLE b (text TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID; CREATE INDEX c ON a (text);"
        + "".join(f"CREATE TABLE t{i} (x);" for i in range(60))  # the schema takes several pages
    )
    rows = [(i, f"{i} " * (i % 900)) for i in range(4000)]
    db.executemany("INSERT INTO a VALUES (?, ?)", rows)
    db.executemany("INSERT INTO b VALUES (?, ?)", [(f"{i} {text}", i) for i, text in rows])
    db.execute("DELETE FROM a WHERE id % 3 = 0")  # pages in the free list
    db.commit()
    pages = TablePages(path)
    roots = [root for (root,) in db.execute("SELECT rootpage FROM sqlite_master")]
    db.close()
    for root in (1, *roots):
        pages.claim(root)
    with pytest.raises(sqlite3.DatabaseError, match="more rows"):
        pages.claim(roots[0])
