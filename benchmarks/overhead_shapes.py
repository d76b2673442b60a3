"""Loops that call very much in one step, for `overhead_rank.py`: recording must not cost more for it.

one         one call of a model with 2,000 modules inside
cells       98 calls of root modules: an LSTM cell for every token
modules     2,000 modules called one by one by the loop itself
parameters  one optimizer of 500 parameters
optimizers  500 optimizers, one for each parameter
micro8      8 micro-batches
micro       64 micro-batches
micro256    256 micro-batches
hooked      one model whose 200 modules carry hooks of another library
"""

from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], None]


def _optimizer(*modules: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=1e-4)


def one() -> Step:
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(1999)], torch.nn.Linear(2, 2))
    return _plain(model)


def cells() -> Step:
    cell, embedding, head = torch.nn.LSTMCell(4, 4), torch.nn.Embedding(8, 4), torch.nn.Linear(4, 2)
    optimizer, tokens = _optimizer(cell, embedding, head), torch.randint(8, (96, 2))

    def step() -> None:
        state: Any = None
        for x in embedding(tokens):
            state = cell(x, state)
        head(state[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def modules() -> Step:
    parts = [torch.nn.Linear(2, 2) for _ in range(2000)]
    optimizer, x = _optimizer(parts[0], parts[-1]), torch.ones(1, 2)

    def step() -> None:
        y = sum(part(x) for part in parts)
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def parameters() -> Step:
    parts = [torch.nn.Parameter(torch.ones(2)) for _ in range(500)]
    optimizer, model, x = torch.optim.SGD(parts, lr=1e-4), torch.nn.Linear(2, 2), torch.ones(1, 2)

    def step() -> None:
        (model(x).sum() + torch.stack(parts).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def optimizers() -> Step:
    parts = [torch.nn.Parameter(torch.ones(2)) for _ in range(500)]
    steppers, model, x = [torch.optim.SGD([p], lr=1e-4) for p in parts], torch.nn.Linear(2, 2), torch.ones(1, 2)

    def step() -> None:
        (model(x).sum() + torch.stack(parts).sum()).backward()
        for optimizer in steppers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def micro8() -> Step:
    return micro(8)


def micro256() -> Step:
    return micro(256)


def micro(count: int = 64) -> Step:
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    optimizer = _optimizer(model)

    def step() -> None:
        for _ in range(count):
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def hooked() -> Step:
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(199)], torch.nn.Linear(2, 2))
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, args: None)
        module.register_forward_hook(lambda module, args, output: None)
    return _plain(model)


def _plain(model: torch.nn.Module) -> Step:
    optimizer, x = _optimizer(model), torch.ones(1, 2)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


SHAPES = {f.__name__: f for f in (one, cells, modules, parameters, optimizers, micro8, micro, micro256, hooked)}
