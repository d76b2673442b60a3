"""Between two steps a loop of tiny operators with nothing that a hook sees: `unhooked.py STEP OPERATORS`."""

import sys

import torch

at, operators = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
counted = torch.zeros(1)
for step in range(24):
    loss = model(torch.randn(2, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == at:
        for _ in range(operators):
            counted += 1
    print(step, loss.item().hex(), counted.item())
