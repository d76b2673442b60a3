"""Trains on a loader; after every `every`-th step it goes through a long evaluation: `evaluates.py EVERY BATCHES`."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

every, batches, steps = int(sys.argv[1]), int(sys.argv[2]), 24
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held_out = DataLoader(TensorDataset(torch.randn(batches * 4, 16)), batch_size=4)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(steps * 4, 16)), batch_size=4)):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    if step % every == every - 1:
        model.eval()
        with torch.no_grad():
            for (y,) in held_out:
                model(y)
        model.train()
    print(step, float(loss).hex())
