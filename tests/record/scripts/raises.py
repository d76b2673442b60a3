"""Raises an error somewhere in a step: `raises.py forward|loop|save|collective STEP`."""

import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

where, at = sys.argv[1], int(sys.argv[2])
step = 0


def fail(here: str) -> None:
    """Raise, if it is here and now."""
    if here == where and step == at:
        raise ValueError(f"in {here}")


class Model(torch.nn.Linear):
    """One layer that fails in its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fail("forward")
        return super().forward(x)


class Saved:
    """Fails while it is saved."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        fail("save")
        return int, ()


torch.manual_seed(0)
model = Model(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if where == "collective":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for x in DataLoader(torch.ones(100, 4), batch_size=2):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    fail("loop")
    if where == "save":
        torch.save(Saved(), os.devnull)
    if where == "collective" and step == at:
        dist.broadcast(torch.ones(1), src=7)
    step += 1
