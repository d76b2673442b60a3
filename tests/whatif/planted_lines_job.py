"""A small training job of two ranks with planted lines: a statistic and all-reduces one by one."""

import sys

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        return self.down(torch.relu(self.up(x)))


def statistic(net: nn.Module) -> float:
    """Return the spread of the gradients, one by one."""
    return sum(float(p.grad.std()) for p in net.parameters() if p.grad is not None)  # planted: statistic


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    net = Net()
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 32), torch.randn(16, 8)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)  # planted: forward
        loss.backward()  # planted: backward
        statistic(net)  # planted: call
        for p in net.parameters():
            dist.all_reduce(p.grad)  # planted: reduces
        optimizer.step()


if __name__ == "__main__":
    main()
