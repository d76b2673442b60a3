"""Small models and loaders that the loops share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH, BATCH, STEPS = 8, 4, 6

Losses = list[str]
"""The losses of a loop, bit by bit: `float.hex()`."""


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return Small()


def ddp_model() -> nn.Module:
    return DistributedDataParallel(small_model())


def loader(*, batches: int = STEPS) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batches * BATCH, WIDTH, generator=generator)
    y = torch.randint(0, 2, (batches * BATCH,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH)


def loss_of(net: Callable[..., torch.Tensor], batch: Any) -> torch.Tensor:
    x, y = batch
    return nn.functional.cross_entropy(net(x), y)


def train(
    net: Any, *updates: Any, batches: int = STEPS, every: int = 1, value_of: Callable[..., torch.Tensor] = loss_of
) -> Losses:
    """Return the losses of a loop: forward, backward, and after every so many batches the optimizers' steps."""
    losses = []
    for number, batch in enumerate(loader(batches=batches), 1):
        loss = value_of(net, batch)
        loss.backward()
        if number % every == 0:
            for optimizer in updates:
                optimizer.step()
                optimizer.zero_grad()
        losses.append(exact(loss))
    return losses


def evaluate(net: nn.Module) -> None:
    net.eval()
    with torch.no_grad():
        for batch in loader(batches=3):
            loss_of(net, batch)
    net.train()


def exact(loss: torch.Tensor) -> str:
    return float(loss.detach()).hex()
