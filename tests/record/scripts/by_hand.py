"""Updates of the parameters written by hand, without an optimizer: `by_hand.py add|assign`."""

import sys

import torch

how, steps = sys.argv[1], 14
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
for step in range(steps):
    model.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    for p in model.parameters():
        if how == "add":
            p.data.add_(p.grad, alpha=-0.1)
        else:
            p.data = p.data - 0.1 * p.grad
    print(step, float(loss).hex())
