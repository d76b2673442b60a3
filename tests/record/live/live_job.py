"""Two ranks that take short steps until a file says otherwise: one file makes rank 1 stand still, another ends all."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def stands_still_here(stand: Path, end: Path) -> None:
    while stand.exists() and not end.exists():
        time.sleep(0.02)


def main() -> None:
    stand, end = Path(sys.argv[1], "stand"), Path(sys.argv[1], "end")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    over = torch.zeros(1)
    while not over.item():
        time.sleep(0.05)
        if dist.get_rank() == 1:
            stands_still_here(stand, end)
        optimizer.zero_grad()
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        over.fill_(float(end.exists()))
        dist.all_reduce(over)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
