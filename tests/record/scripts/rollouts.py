"""A policy writes without gradients and is then improved in two steps by what it wrote: `rollouts.py ROUNDS`."""

import sys

import torch

torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)


def write(state):
    for _ in range(40):
        state = torch.tanh(policy(state))
    return state


def improve(state, written):
    for _ in range(2):
        optimizer.zero_grad()
        loss = (policy(state) - written).square().mean()
        loss.backward()
        optimizer.step()
    return loss


for _ in range(int(sys.argv[1])):
    state = torch.randn(32, 64)
    with torch.no_grad():
        written = write(state)
    print(float(improve(state, written)).hex())
