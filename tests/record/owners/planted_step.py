"""A training step whose operators come from many lines: calls, loops, comprehensions, generators, hooks, recursion."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.mul(x, 2.0)

    @staticmethod
    def backward(ctx, grad):
        return torch.mul(grad, 2.0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def inner(self, x):
        hidden = F.gelu(self.up(self.norm(x)))
        return self.down(hidden)

    def forward(self, x):
        out = checkpoint(self.inner, x, use_reentrant=False)
        return torch.add(x, out)


class Net(nn.Module):
    def __init__(self, width=16, layers=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = Scale.apply(x)
        return self.head(x)


def first_large(tensors):
    """Return the first that fits: the generator is closed before its end."""
    return any(t.abs().max() > -1 for t in tensors)


def nested(x, depth):
    if depth == 0:
        return torch.sin(x)
    return torch.cos(nested(x, depth - 1))


class Step:
    def __init__(self):
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.averages = [p.detach().clone() for p in self.model.parameters()]
        self.loss = nn.MSELoss()

    def __call__(self):
        x = torch.randn(8, 16)
        y = torch.randn(8, 4)
        first_large([x, y])
        out = self.model(x)
        loss = self.loss(out, y)
        loss.backward()
        norms = [p.grad.float().norm() for p in self.model.parameters()]
        torch.stack(norms).sum().item()
        nested(x, 3)
        self.optimizer.step()
        with torch.no_grad():
            for average, p in zip(self.averages, self.model.parameters(), strict=True):
                average.lerp_(p, 0.1)
        self.optimizer.zero_grad()
        del out, loss
