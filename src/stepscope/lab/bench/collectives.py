"""What do collectives take here? Every operation, 1 kB to 1 GB, several world sizes, within a time limit.

    python -m stepscope.bench.collectives --backend gloo --world-size 2 --world-size 4 --out times.json
    torchrun --nproc-per-node 8 -m stepscope.bench.collectives --backend nccl --out times.json

The first starts its own ranks on this machine; under a launcher the job's ranks are used. Smaller world sizes are
groups of the first ranks. Bytes are the full buffer of the operation. A time is that of one call among calls back to
back, the slowest rank's; the median counts.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from stepscope.contract.run_folder import atomic_write
from stepscope.lab.bench.launch import launched_by
from stepscope.lab.bench.measure import wait_for_device
from stepscope.lab.bench.rank import Bench, run_to_exit_code
from stepscope.lab.bench.sessions import COLLECTIVES, collective_times
from stepscope.units import json_text

MIN_BYTES = 1024
_BLOCKS = 5
_BLOCK_S = 0.02  # calls of one block take about this long, at least one call
_MAX_CALLS = 50

Row = tuple[str, int, int, float, float, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 after measuring; in a separate job or on the ranks of a launcher."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--world-size", type=int, action="append", help="several give several; default: all ranks")
    parser.add_argument("--op", choices=COLLECTIVES, action="append", help="default: every operation")
    parser.add_argument("--max-bytes", type=int, default=2**30)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args(argv)
    launched = launched_by()
    found = collective_times(
        args.backend, args.world_size or [launched.world_size if launched else 2], ops=args.op or (),
        max_bytes=args.max_bytes, limit_s=args.limit_s, launched=launched,
    )  # fmt: skip
    if launched is None or launched.writes:
        with atomic_write(args.out) as f:
            f.write((json_text(found, indent=1) + "\n").encode())
    return 0


def measure(bench: Bench, settings: dict[str, Any]) -> None:
    """Emit the rows of all sizes that fit into the time; world sizes and operations of one size follow each other."""
    device, deadline = bench.device, time.perf_counter() + settings["limit_s"]
    groups = {world: dist.new_group(list(range(world))) for world in settings["world_sizes"]}
    size, fits = MIN_BYTES, torch.ones(1, device=device)
    while size <= settings["max_bytes"] and fits:
        begin = time.perf_counter()
        for op in settings["ops"]:
            for world, group in groups.items():
                if bench.rank < world:
                    bench.emit(what="row", row=_row(op, world, size, group, device))
                dist.barrier()
        now = time.perf_counter()
        # The next size takes about twice as long, and some air. Rank 0 decides for all.
        fits.fill_(float(now + 2.5 * (now - begin) < deadline))
        dist.broadcast(fits, 0)
        size *= 2


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


if __name__ == "__main__":
    sys.exit(run_to_exit_code("stepscope.bench.collectives", main))
