"""A training job for `gpu_gate.py`: a stack of linear layers, DDP on several ranks, and extra products on request.

python benchmarks/gate_job.py [--extra N] [--steps N] [--width N]
python benchmarks/gate_job.py --extra N --truth        times blocks with and without the extra work, prints JSON
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from common import on_one_device
from torch import nn

BLOCK, BLOCKS = 20, 15


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--extra", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--truth", action="store_true")
    args = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(args.width, args.width) for _ in range(12))).to(device)
    if ranks > 1:
        os.environ.update(on_one_device(rank))
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(args.width, args.width, device=device)

    def step(extra: int) -> None:
        loss = model(batch).square().mean()
        for _ in range(extra):
            batch @ batch
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if args.truth:
        blocks = [(block(step, 0, device), block(step, args.extra, device)) for _ in range(BLOCKS)][2:]
        changes = [100 * (slow / fast - 1) for fast, slow in blocks]
        if rank == 0:
            about = {"step_ms": statistics.median(fast for fast, _ in blocks), "change_pct": statistics.median(changes)}
            print(json.dumps({**about, "sd_pct": statistics.stdev(changes)}))
    else:
        for _ in range(args.steps):
            step(args.extra)
    if ranks > 1:
        dist.destroy_process_group()


def block(step, extra: int, device: torch.device) -> float:
    """Return the mean step of a block in ms."""
    begin_s = time.perf_counter()
    for _ in range(BLOCK):
        step(extra)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin_s) / BLOCK


if __name__ == "__main__":
    main()
