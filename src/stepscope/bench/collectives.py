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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from stepscope.bench.session.exit_code import run_to_exit_code
from stepscope.contract.run_folder import SCHEMA, atomic_write
from stepscope.errors import UsageError
from stepscope.json_text import json_text

_KIND = "stepscope collective times"
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
_MIN_BYTES = 1024
_MAX_BYTES = 2**30
_BLOCKS = 5
# calls of one block take about this long, at least one call
_BLOCK_S = 0.02
_MAX_CALLS = 50

Call = Callable[[], None]


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    backend: str
    world_sizes: tuple[int, ...]
    operations: tuple[str, ...] = _OPERATIONS
    largest_bytes: int = _MAX_BYTES
    #: for everything; larger sizes are left out where it runs short
    limit_s: float = 60.0


@dataclass(frozen=True)
class Row:
    """Times of one operation at one size."""

    op: str
    world_size: int
    bytes: int
    median_us: float
    min_us: float
    max_us: float


def _measure_collectives(settings: Settings) -> list[Row]:
    """Return the times of all operations and sizes; every rank of the initialised default group has to call it."""
    device, deadline = _device(), time.perf_counter() + settings.limit_s
    groups = {w: dist.new_group(list(range(w))) for w in settings.world_sizes}
    rows: list[Row] = []
    size = _MIN_BYTES
    while size <= settings.largest_bytes:
        begin = time.perf_counter()
        rows += _all_at(size, settings.operations, groups, device)
        now = time.perf_counter()
        # The next size takes about twice as long, and some air. Rank 0 decides for all.
        if not _agree(now + 2.5 * (now - begin) < deadline, device):
            break
        size *= 2
    return rows


def _all_at(size: int, operations: Sequence[str], groups: dict[int, Any], device: torch.device) -> list[Row]:
    """Return the rows of one size: world sizes and operations side by side, so that they share what disturbs them."""
    rows = []
    for op in operations:
        for world, group in groups.items():
            if dist.get_rank() < world:
                rows.append(_row(op, world, size, group, device))
            dist.barrier()
    return rows


def _row(op: str, world: int, size: int, group: Any, device: torch.device) -> Row:
    call = _operation(op, size, world, group, device)
    call()
    once_s = _slowest(max(_block_s(call, 1, group, device)), group, device)
    calls = max(1, min(_MAX_CALLS, int(_BLOCK_S / max(once_s, 1e-9))))
    times = [time_s for _ in range(_BLOCKS) for time_s in _block_s(call, calls, group, device)]
    usual = (statistics.median(times), min(times), max(times))
    return Row(op, world, size, *(1e6 * _slowest(value, group, device) for value in usual))


def _block_s(call: Call, calls: int, group: Any, device: torch.device) -> list[float]:
    """Return the time of each call; on a device, where calls only queue work, their mean."""
    dist.barrier(group)
    _finish(device)
    marks = [time.perf_counter()]
    for _ in range(calls):
        call()
        marks.append(time.perf_counter())
    if device.type == "cpu":
        return [after - before for before, after in pairwise(marks)]
    _finish(device)
    return [(time.perf_counter() - marks[0]) / calls]


def _operation(op: str, size: int, world: int, group: Any, device: torch.device) -> Call:
    """Return a call of the operation whose full buffer has `size` bytes."""
    count = max(size // 4 // world * world, world)
    full = torch.zeros(count, device=device)
    part = torch.zeros(count // world, device=device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(full, group=group)
    if op == "all_gather":
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the newer name, then the older
        return lambda: gather(full, part, group=group)
    if op == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        return lambda: scatter(part, full, group=group)
    if op == "all_to_all":
        received = torch.zeros_like(full)
        return lambda: dist.all_to_all_single(received, full, group=group)
    if op == "broadcast":
        return lambda: dist.broadcast(full, 0, group=group)
    return _shift(full, world, group)


def _shift(buffer: torch.Tensor, world: int, group: Any) -> Call:
    """Return a call in which every rank sends to the next and receives from the one before."""
    received, rank = torch.zeros_like(buffer), dist.get_rank()
    send = dist.P2POp(dist.isend, buffer, (rank + 1) % world, group=group)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % world, group=group)

    def call() -> None:
        for request in dist.batch_isend_irecv([send, receive]):
            request.wait()

    return call


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _slowest(value: float, group: Any, device: torch.device) -> float:
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    return float(shared.item())


def _agree(yes: bool, device: torch.device) -> bool:
    shared = torch.tensor([int(yes)], device=device)
    dist.broadcast(shared, 0)
    return bool(shared.item())


def _device() -> torch.device:
    if dist.get_backend() != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _about(backend: str) -> dict[str, Any]:
    """Return the machine and the software that was measured."""
    cuda = backend == "nccl"
    return {
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
    }


def _write_times(rows: Sequence[Row], settings: Settings, path: str | Path) -> None:
    """Write what was measured, whole or not at all."""
    columns = tuple(Row.__dataclass_fields__)
    document = {
        "schema": SCHEMA,
        "kind": _KIND,
        **_about(settings.backend),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "columns": columns,
        "rows": [[getattr(row, name) for name in columns] for row in rows],
    }
    with atomic_write(path) as f:
        f.write((json_text(document, indent=1) + "\n").encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 after measuring; in a job of its own or on the ranks of torchrun."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--world-size", type=int, action="append", help="several give several; default: all ranks")
    parser.add_argument("--op", choices=_OPERATIONS, action="append", help="default: every operation")
    parser.add_argument("--max-bytes", type=int, default=_MAX_BYTES)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args(argv)
    started_by_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    worlds = tuple(sorted(set(args.world_size or [int(os.environ.get("WORLD_SIZE", "2"))])))
    if worlds[0] < 2:
        raise UsageError(f"world sizes have to be 2 or more, not {worlds[0]}")
    settings = Settings(args.backend, worlds, tuple(args.op or _OPERATIONS), args.max_bytes, args.limit_s)
    if started_by_torchrun:
        _rank_main(int(os.environ["RANK"]), settings, args.out, "env://", int(os.environ["WORLD_SIZE"]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        mp.spawn(_rank_main, args=(settings, args.out, store, worlds[-1]), nprocs=worlds[-1])
    return 0


def _rank_main(rank: int, settings: Settings, out: str, init_method: str, world_size: int) -> None:
    if settings.world_sizes[-1] > world_size:
        raise UsageError(f"world size {settings.world_sizes[-1]} is more than the job's {world_size}")
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", str(rank))
    dist.init_process_group(settings.backend, init_method=init_method, rank=rank, world_size=world_size)
    try:
        rows = _measure_collectives(settings)
        if rank == 0:
            _write_times(rows, settings, out)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(run_to_exit_code("stepscope.bench.collectives", main))
