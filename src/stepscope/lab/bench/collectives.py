"""What do collectives take here? Every operation, 1 kB to 1 GB, several world sizes, within a time limit.

    python -m stepscope.bench.collectives --backend gloo --world-size 2 --world-size 4 --out times.json
    torchrun --nproc-per-node 8 -m stepscope.bench.collectives --backend nccl --out times.json

The first starts its own processes on this machine; under torchrun the job's ranks are used. Smaller world sizes are
groups of the first ranks. Bytes are the full buffer of the operation. A time is that of one call among calls back to
back, the slowest rank's; the median counts.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from stepscope.contract.run_folder import SCHEMA, atomic_write
from stepscope.errors import UsageError
from stepscope.lab.bench.measure import wait_for_device
from stepscope.lab.bench.rank import run_to_exit_code
from stepscope.units import json_text

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
MIN_BYTES, MAX_BYTES = 1024, 2**30
_COLUMNS = ("op", "world_size", "bytes", "median_us", "min_us", "max_us")
_BLOCKS = 5
_BLOCK_S = 0.02  # calls of one block take about this long, at least one call
_MAX_CALLS = 50

Row = tuple[str, int, int, float, float, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 after measuring; in a separate job or on the ranks of torchrun."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--world-size", type=int, action="append", help="several give several; default: all ranks")
    parser.add_argument("--op", choices=_OPERATIONS, action="append", help="default: every operation")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args(argv)
    args.world_size = sorted(set(args.world_size or [int(os.environ.get("WORLD_SIZE", "2"))]))
    if args.world_size[0] < 2:
        raise UsageError(f"world sizes have to be 2 or more, not {args.world_size[0]}")
    most = args.world_size[-1]
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        started = int(os.environ["WORLD_SIZE"])
        if most > started:
            raise UsageError(f"world size {most} is more than the job's {started}")
        _rank_main(int(os.environ["RANK"]), args, "env://", started)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank_main, args=(args, f"file://{folder}/store", most), nprocs=most)
    return 0


def _rank_main(rank: int, args: argparse.Namespace, init_method: str, world_size: int) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", str(rank))
    dist.init_process_group(args.backend, init_method=init_method, rank=rank, world_size=world_size)
    try:
        rows = _measure(args)
        if rank == 0:
            with atomic_write(args.out) as f:
                f.write((json_text(_document(args.backend, rows), indent=1) + "\n").encode())
    finally:
        dist.destroy_process_group()


def _measure(args: argparse.Namespace) -> list[Row]:
    """Return the rows of all sizes that fit into the time; world sizes and operations of one size follow each other."""
    device, deadline = torch.device("cpu"), time.perf_counter() + args.limit_s
    if args.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    groups = {world: dist.new_group(list(range(world))) for world in args.world_size}
    rows: list[Row] = []
    size, fits = MIN_BYTES, torch.ones(1, device=device)
    while size <= args.max_bytes and fits:
        begin = time.perf_counter()
        for op in args.op or _OPERATIONS:
            for world, group in groups.items():
                if dist.get_rank() < world:
                    rows.append(_row(op, world, size, group, device))
                dist.barrier()
        now = time.perf_counter()
        # The next size takes about twice as long, and some air. Rank 0 decides for all.
        fits.fill_(float(now + 2.5 * (now - begin) < deadline))
        dist.broadcast(fits, 0)
        size *= 2
    return rows


def _row(op: str, world: int, size: int, group: Any, device: torch.device) -> Row:
    call = operation(op, size, world, group, device)
    call()

    once_s = slowest(max(block_s(call, 1, group, device)), group, device)
    calls = max(1, min(_MAX_CALLS, int(_BLOCK_S / max(once_s, 1e-9))))
    times = [time_s for _ in range(_BLOCKS) for time_s in block_s(call, calls, group, device)]
    median_us, min_us, max_us = (1e6 * slowest(of(times), group, device) for of in (median, min, max))
    return op, world, size, median_us, min_us, max_us


def slowest(value: float, group: Any, device: torch.device) -> float:
    """Return the largest value of all ranks of the group."""
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    return float(shared.item())


def block_s(call: Callable[[], Any], calls: int, group: Any, device: torch.device) -> list[float]:
    """Return the time of each call; on a device, where calls only queue work, their mean."""
    dist.barrier(group)
    wait_for_device(device)
    marks = [time.perf_counter()]
    for _ in range(calls):
        call()
        marks.append(time.perf_counter())
    if device.type == "cpu":
        return [after - before for before, after in pairwise(marks)]
    wait_for_device(device)
    return [(time.perf_counter() - marks[0]) / calls]


def operation(op: str, size: int, world: int, group: Any, device: torch.device) -> Callable[[], Any]:
    """Return a call of the operation whose full buffer has `size` bytes."""
    count = max(size // 4 // world * world, world)
    full, part = torch.zeros(count, device=device), torch.zeros(count // world, device=device)
    received = torch.zeros_like(full) if op in ("all_to_all", "send_recv") else full
    # the newer name, then the older
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def shift() -> None:
        """Send to the next rank and receive from the one before."""
        rank = dist.get_rank()
        send = dist.P2POp(dist.isend, full, (rank + 1) % world, group=group)
        receive = dist.P2POp(dist.irecv, received, (rank - 1) % world, group=group)
        for request in dist.batch_isend_irecv([send, receive]):
            request.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: gather(full, part, group=group),
        "reduce_scatter": lambda: scatter(part, full, group=group),
        "all_to_all": lambda: dist.all_to_all_single(received, full, group=group),
        "broadcast": lambda: dist.broadcast(full, 0, group=group),
        "send_recv": shift,
    }[op]


def _document(backend: str, rows: Sequence[Row]) -> dict[str, Any]:
    cuda = backend == "nccl"
    return {
        "schema": SCHEMA,
        "kind": "stepscope collective times",
        "backend": backend,
        "machine": {
            "host": platform.node(),
            "cpus": os.cpu_count(),
            "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        },
        "software": {
            "torch": str(torch.__version__),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
            "python": platform.python_version(),
        },
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "columns": _COLUMNS,
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(run_to_exit_code("stepscope.bench.collectives", main))
