"""Raises an error somewhere in a step: `raises.py forward|backward|optimizer|dataset|loop|save|collective STEP`."""

import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

where, at = sys.argv[1], int(sys.argv[2])
step = 0


def fail(here: str) -> None:
    """Raise, if it is here and now."""
    if here == where and step == at:
        raise ValueError(f"in {here}")


class Ones(Dataset):
    """A hundred samples."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        fail("dataset")
        return torch.ones(4)


class Same(torch.autograd.Function):
    """The same values, and a backward in Python."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        fail("backward")
        return gradient


class Model(torch.nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fail("forward")
        return Same.apply(self.layer(x))


class Optimizer(torch.optim.SGD):
    """Fails in its step."""

    def step(self, closure: object = None) -> None:
        fail("optimizer")
        super().step()


class Saved:
    """Fails while it is saved."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        fail("save")
        return int, ()


torch.manual_seed(0)
model = Model()
optimizer = Optimizer(model.parameters(), lr=0.1)
if where == "collective":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for x in DataLoader(Ones(), batch_size=2):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    fail("loop")
    if where == "save":
        torch.save(Saved(), os.devnull)
    if where == "collective" and step == at:
        dist.broadcast(torch.ones(1), src=7)
    step += 1
