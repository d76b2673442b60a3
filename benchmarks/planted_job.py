"""A small GPT on CPU ranks with one fault planted, or with that fault mended; `planted_faults.py` starts it.

torchrun --nproc-per-node=2 planted_job.py --fault slow_loader [--mended] [--steps 60]
"""

import argparse
import contextlib
import json
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stepscope.bench.demo_train import BATCH, GPT, Text

MICRO_BATCHES = 4


class SlowText(Text):
    """The same samples, each after a pause."""

    def __init__(self, windows: int, pause_s: float) -> None:
        super().__init__(windows)
        self._pause_s = pause_s

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self._pause_s)
        return super().__getitem__(i)


class Planted:
    """What a fault changes in the loop; nothing where it is mended, or not this one."""

    def __init__(self, fault: str, *, repaired: bool, rank: int) -> None:
        self.name = "none" if repaired else fault
        self.kind, self.rank = fault, rank

    def loader(self, steps: int) -> DataLoader:
        """Batches for so many steps; slow ones take 5 ms per sample."""
        slow = self.name == "slow_loader" or (self.name == "slow_loader_one" and self.rank == 0)
        batch = self.batch_size() * (MICRO_BATCHES if self.kind == "sync_every_micro_batch" else 1)
        return DataLoader(SlowText(steps * batch, 0.005 if slow else 0.0), batch_size=batch)

    def batch_size(self) -> int:
        """Uneven work: 4 and 12 samples; mended 8 and 8."""
        return BATCH if self.name != "uneven_batches" else BATCH // 2 if self.rank else BATCH + BATCH // 2

    def model(self) -> nn.Module:
        """The model, wrapped where DDP exchanges its gradients."""
        if self.name in ("no_overlap", "one_by_one"):
            return GPT()
        return DistributedDataParallel(GPT(), bucket_cap_mb=0.01 if self.name == "tiny_buckets" else 1)

    def before_forward(self, step: int, model: nn.Module, ids: torch.Tensor) -> None:
        """Hold up all ranks or the late one."""
        late = self.rank == 1
        if (self.name == "late_host" and late) or self.name == "stall":
            time.sleep(0.05)
        if self.name == "late_now_and_then" and late and step % 3 == 0:
            time.sleep(0.15)
        if self.name == "late_compute" and late:
            with torch.no_grad():
                for _ in range(3):
                    getattr(model, "module", model)(ids)

    def after_backward(self, model: nn.Module) -> None:
        """Average gradients by hand where DDP does not."""
        if self.name not in ("no_overlap", "one_by_one"):
            return
        gradients = [p.grad for p in model.parameters()]
        if self.name == "one_by_one":
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
            return
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def micro_batches(self, model: nn.Module, ids: torch.Tensor, following: torch.Tensor):
        """Each micro-batch with the context of its backward pass."""
        if self.kind != "sync_every_micro_batch":
            yield contextlib.nullcontext(), ids, following
            return
        pairs = list(zip(ids.chunk(MICRO_BATCHES), following.chunk(MICRO_BATCHES), strict=True))
        for i, pair in enumerate(pairs):
            quiet = self.name == "none" and i < len(pairs) - 1
            yield (model.no_sync() if quiet else contextlib.nullcontext()), *pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fault", required=True)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--times", help="file for rank 0's step times in ms")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    planted = Planted(args.fault, repaired=args.repaired, rank=dist.get_rank())
    model = planted.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    marks = [time.perf_counter()]
    for step, (ids, following) in enumerate(planted.loader(args.steps)):
        planted.before_forward(step, model, ids)
        optimizer.zero_grad()
        for context, some_ids, some_following in planted.micro_batches(model, ids, following):
            with context:
                nn.functional.cross_entropy(model(some_ids).flatten(0, 1), some_following.flatten()).backward()
        planted.after_backward(model)
        optimizer.step()
        marks.append(time.perf_counter())
    if args.times and dist.get_rank() == 0:
        Path(args.times).write_text(json.dumps([1000 * (b - a) for a, b in pairwise(marks)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
