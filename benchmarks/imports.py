"""Time and memory of importing and reading large files: an export of Nsight Systems and a log of NCCL.

    python benchmarks/imports.py --export-megabytes 1000 --log-megabytes 200

Writes both, imports each in a separate process, and reads the export into columns. The files are removed afterwards.
"""

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import STEPSCOPE, environment, mb, run_json

if TYPE_CHECKING:
    from stepscope.trace.table import Trace

RANGES_PER_KERNEL = 5
BYTES_PER_KERNEL = 640
"""of such a file, launch and ranges included"""
MACHINE = 1 << 48
KERNELS_AT_ONCE = 20_000

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, systemClockNs INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
    registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER,
    blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
    domainId INTEGER, binaryData TEXT);
"""
LINE = (
    "node1:{pid}:{pid} [{rank}] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x7f1c00000000 recvbuff 0x7f1c00000000 "
    "count {count} datatype 7 op 0 root 0 comm 0x55d0c0de0000 [nranks=8] stream 0x55d0c0ff0000\n"
    "node1:{pid}:{pid} [{rank}] NCCL INFO AllReduce: {size} Bytes -> Algo RING proto SIMPLE "
    "channel{{Lo..Hi}}={{0..23}}\n"
)
INIT = (
    "node1:{pid}:{pid} [{rank}] NCCL INFO ncclCommInitRankConfig comm 0x55d0c0de0000 rank {rank} nranks 8 "
    "cudaDev {rank} nvmlDev {rank} busId 1b000 commId 0xf19a6c1f0e7c1a2b - Init COMPLETE\n"
)


def write_export(path: Path, kernels: int) -> None:
    """Write an export of so many kernels of two processes."""
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + SCHEMA)
    db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, NULL)")
    names = [(i, f"void at::native::some_kernel_{i}<float, {i}>(float*, int)") for i in range(200)]
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [*names, (999, "cudaLaunchKernel_v7000")])
    for first in range(0, kernels, KERNELS_AT_ONCE):
        part = range(first, min(first + KERNELS_AT_ONCE, kernels))
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 19)})", map(_kernel, part))
        calls = ((20_000 * i, 20_000 * i + 3000, 0, _thread(i), i + 1, 999, 0, None) for i in part)
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?, ?)", calls)
        ranges = (_range(i, depth) for i in part for depth in range(RANGES_PER_KERNEL))
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL, 0, NULL)", ranges)
    db.commit()
    db.close()


def _kernel(i: int) -> tuple[int | None, ...]:
    start = 20_000 * i + 5000
    where = start, start + 9000, i % 2, 1, 7, i + 1, MACHINE | (100 + i % 2) << 24
    return (*where, i % 200, i % 200, 32, 64, 1, 1, 128, 1, 1, 0, 0, None)


def _range(i: int, depth: int) -> tuple[int, int, str, int]:
    start = 20_000 * i - 1000 + 100 * depth
    number = RANGES_PER_KERNEL * i + depth
    text = f"aten::operator_{number % 300}, op_id = {number}, sizes = [[16, 512, 4096], [4096, 4096]]"
    return start, 20_000 * i + 8000 - 100 * depth, text, _thread(i)


def _thread(i: int) -> int:
    process = 100 + i % 2
    return MACHINE | process << 24 | process


def write_log(path: Path, megabytes: int) -> None:
    """Write a log of eight ranks: their communicator, then collectives and what NCCL chose for them."""
    with path.open("w") as f:
        for rank in range(8):
            f.write(INIT.format(pid=100 + rank, rank=rank))
        n = 0
        while f.tell() < megabytes * 1_000_000:
            for rank in range(8):
                count = 1 << (10 + n % 12)
                f.write(LINE.format(pid=100 + rank, rank=rank, n=n, count=count, size=4 * count))
            n += 1


def imported(path: Path, into: Path) -> str:
    """Return time and memory of the import of one file."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*STEPSCOPE, "import", str(path), "--into", str(into)], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    spent, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    return (
        f"{path.name}, {path.stat().st_size / 1e6:,.0f} MB: {mb(used.ru_maxrss):,.0f} MB at most, {spent:.1f} s "
        f"({cpu:.1f} s CPU), exit code {os.waitstatus_to_exitcode(status)}\n    {said}"
    )


def read(path: Path) -> None:
    from stepscope.trace.nsight import read_nsys

    base_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    told: list[int] = []
    began, cpu = time.monotonic(), time.process_time()
    traces = read_nsys(path, progress=told.append)
    found = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "base_mb": base_mb,
        "events": sum(t.num_events for t in traces),
        "table_mb": _held_bytes(traces) / 1e6,
        "progress": len(told),
    }
    print(json.dumps(found))


def _held_bytes(traces: "Sequence[Trace]") -> int:
    """Return what the tables hold; a column of one value, and rows that several arguments share, count once."""
    arrays = [a for t in traces for a in t.columns.values()]
    arrays += [a for t in traces for one in t.args.values() for a in (one.rows, one.values)]
    return sum({id(a): a.itemsize if a.strides == (0,) else a.nbytes for a in arrays}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export-megabytes", type=int, default=1000)
    parser.add_argument("--log-megabytes", type=int, default=200)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        read(args.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        export, log = Path(folder, "export.sqlite"), Path(folder, "job.log")
        write_export(export, args.export_megabytes * 1_000_000 // BYTES_PER_KERNEL)
        write_log(log, args.log_megabytes)
        for path in (export, log):
            print(imported(path, Path(folder, "run")))
        found = run_json([sys.executable, __file__, "--read", str(export)])
    print(f"{found['events']:,} events read in {found['seconds']:.1f} s ({found['cpu_seconds']:.1f} s CPU)")
    print(
        f"peak memory {found['peak_mb']:,.0f} MB, {found['base_mb']:,.0f} MB of it before; "
        f"the columns take {found['table_mb']:,.0f} MB"
    )


if __name__ == "__main__":
    main()
