"""In how much memory does `stepscope import` take a large export of Nsight Systems, and a large log of NCCL?

    .venv/bin/python benchmarks/import_memory.py --export-megabytes 1000 --log-megabytes 200

Writes both, imports each in a process of its own and prints time and peak memory. The files are removed afterwards.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nsys_read import BYTES_PER_KERNEL, write_export

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
    """Return what the import of one file took, in words."""
    began = time.monotonic()
    command = [sys.executable, "-m", "stepscope", "import", str(path), "--into", str(into)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    spent, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    size = path.stat().st_size / 1e6
    return (
        f"{path.name}, {size:,.0f} MB: {used.ru_maxrss / 1024:,.0f} MB at most, {spent:.1f} s ({cpu:.1f} s CPU), "
        f"exit code {os.waitstatus_to_exitcode(status)}\n    {said}"
    )


def main() -> None:
    """Write, import, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export-megabytes", type=int, default=1000)
    parser.add_argument("--log-megabytes", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        export, log = Path(folder, "export.sqlite"), Path(folder, "job.log")
        write_export(export, args.export_megabytes * 1_000_000 // BYTES_PER_KERNEL)
        write_log(log, args.log_megabytes)
        for path in (export, log):
            print(imported(path, Path(folder, "run")))


if __name__ == "__main__":
    main()
