"""A DDP job in which one rank is late on purpose: the last rank's share of the data lies on slow storage.

Run it:      stepscope record --out slow -- torchrun --nproc-per-node=2 examples/train_planted_fault.py
Mend it:     stepscope record --out mended -- torchrun --nproc-per-node=2 examples/train_planted_fault.py --workers 2
The story:   docs/tutorial-planted-fault.md
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 512, 32


class Shard(Dataset[torch.Tensor]):  # type: ignore[misc]
    """One rank's batches. Those of a slow shard take `slow_s` to arrive, as from a busy network disk."""

    def __init__(self, batches: int, *, slow_s: float) -> None:
        self._batches = torch.randn(batches, BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
        self._slow_s = slow_s

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(self._slow_s)
        return self._batches[i]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--slow-ms", type=float, default=80, help="what a batch of the last rank takes to arrive")
    parser.add_argument("--workers", type=int, default=0, help="processes that load ahead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    last = dist.get_rank() == dist.get_world_size() - 1
    shard = Shard(args.steps, slow_s=args.slow_ms / 1000 if last else 0)
    train(DataLoader(shard, batch_size=None, num_workers=args.workers))
    dist.destroy_process_group()


def train(loader: DataLoader[torch.Tensor]) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in loader:
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
