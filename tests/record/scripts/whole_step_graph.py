"""Trains with a stand-in for a CUDA graph that holds the whole step, optimizer included, and is replayed."""

import sys
from typing import Any

import torch

Base: Any = torch.cuda.CUDAGraph.__mro__[1]  # on a machine without CUDA it has no methods, and only raises
Base.__new__, Base.__init__ = lambda cls, *args, **named: object.__new__(cls), lambda self, *args, **named: None
for name in ("capture_begin", "capture_end", "replay", "reset"):
    setattr(Base, name, lambda self, *args, **named: None)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def steps(count):
    for _ in range(count):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


steps(3)
graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
for graph, count in zip(graphs, (1, 0), strict=True):
    graph.capture_begin()
    steps(count)
    graph.capture_end()
for _ in range(int(sys.argv[1])):
    for graph in graphs:
        graph.replay()
