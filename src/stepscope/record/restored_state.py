"""A model, its optimizer and the random numbers, put back as they were after a trial run.

State is kept beside the originals and copied back into the same tensors, so that references to them (DDP's buckets,
other modules, captured graphs) stay valid. It needs memory for one copy of parameters, buffers and optimizer state.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def keep_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, loader: Any = None) -> Iterator[None]:
    """Run the body in training mode, then restore parameters, gradients, buffers, optimizer, modes and generators."""
    tensors = _tensors_of(model, optimizer)
    values = [t.detach().clone() for t in tensors]
    parameters = _parameters_of(model, optimizer)
    gradients = [p.grad for p in parameters]
    optimizer_state = {p: dict(state) for p, state in optimizer.state.items()}
    optimizer_values = {p: _cloned(state) for p, state in optimizer_state.items()}
    modes = [(module, module.training) for module in model.modules()]
    generators = _generators(loader)
    for p in parameters:
        p.grad = None
    try:
        model.train()
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            _restore_optimizer(optimizer, optimizer_state, optimizer_values)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        for module, training in modes:
            module.training = training
        _restore_generators(generators, loader)


def _parameters_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    found = {id(p): p for p in model.parameters()}
    found.update({id(p): p for group in optimizer.param_groups for p in group["params"]})
    return list(found.values())


def _tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [*_parameters_of(model, optimizer), *model.buffers()]


def _cloned(state: dict[Any, Any]) -> dict[Any, Any]:
    return {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, states: dict[Any, dict[Any, Any]], values: dict[Any, dict[Any, Any]]
) -> None:
    """Put the old tensors back with their old values; `load_state_dict` would cast them to the parameter's type."""
    for p in list(optimizer.state):
        if p not in states:
            del optimizer.state[p]
    for p, state in states.items():
        for name, kept in state.items():
            if isinstance(kept, torch.Tensor):
                kept.copy_(values[p][name])
        optimizer.state[p] = state


def _generators(loader: Any) -> dict[str, Any]:
    own = getattr(loader, "generator", None)
    return {
        "python": random.getstate(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "loader": own.get_state() if own is not None else None,
    }


def _restore_generators(kept: dict[str, Any], loader: Any) -> None:
    random.setstate(kept["python"])
    torch.set_rng_state(kept["cpu"])
    if kept["cuda"] is not None:
        torch.cuda.set_rng_state_all(kept["cuda"])
    if kept["loader"] is not None:
        loader.generator.set_state(kept["loader"])
