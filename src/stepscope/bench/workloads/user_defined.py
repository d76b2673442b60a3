"""A workload of one's own: `module:function`, called with the spec and the device.

The function returns (model, batches, loss) or a dictionary of these, and is imported from the current folder or the
path. Model: an nn.Module. Batches: a Dataset of samples, or a list, a DataLoader or an
endless iterable of batches. Loss: `loss(model, batch)`.

    def tiny(spec, device):
        data = torch.utils.data.TensorDataset(torch.randn(1000, 8), torch.randn(1000, 1))
        return nn.Linear(8, 1), data, lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stepscope.bench.workloads.workload import Workload, WorkloadSpec
from stepscope.errors import UsageError

_PARTS = ("model", "batches", "loss")


@dataclass(frozen=True)
class GivenBatches(Workload):
    """A workload whose batches come ready-made: rank r takes every world_size-th, from the r-th on."""

    given: Iterable[Any] = ()

    def _host_batches(self, *, rank: int, world_size: int) -> Iterator[Any]:
        return islice(_endless(self.given), rank, None, world_size)


def _build(spec: WorkloadSpec, device: torch.device, argument: str) -> Workload:
    made = _call(_function(argument), argument, spec, device)
    model, batches, loss = _checked(made, argument)
    shared = {
        "spec": spec,
        "model": model.to(device),
        "device": device,
        "objective": loss,
    }
    if isinstance(batches, IterableDataset):
        batches = DataLoader(batches, batch_size=spec.batch_size)
    if isinstance(batches, Dataset):
        return Workload(samples=batches, **shared)
    return GivenBatches(samples=Dataset(), given=batches, **shared)


def _endless(given: Iterable[Any]) -> Iterator[Any]:
    ended = False
    while not ended:
        ended = True
        for batch in given:
            ended = False
            yield batch


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - compared with sys.path, which holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"workload {name!r}: cannot import its module: {error}; start the command in its folder"
        ) from error
    except AttributeError as error:
        raise UsageError(f"module {module} has no function {function!r}") from error
    if not callable(found):
        raise UsageError(f"{name!r} is not a function but a {type(found).__name__}")
    return found


def _call(function: Callable[..., Any], name: str, spec: WorkloadSpec, device: torch.device) -> Any:
    try:
        inspect.signature(function).bind(spec, device)
    except TypeError as error:
        raise UsageError(f"cannot call {name!r} with (spec, device): {error}") from error
    return function(spec, device)


def _checked(made: Any, name: str) -> tuple[nn.Module, Any, Callable[[nn.Module, Any], torch.Tensor]]:
    if isinstance(made, dict):
        missing = [part for part in _PARTS if part not in made]
        if missing:
            raise UsageError(f"{name!r} has to return {', '.join(_PARTS)}, but {', '.join(missing)} is missing")
        made = tuple(made[part] for part in _PARTS)
    if not isinstance(made, tuple) or len(made) != 3:
        raise UsageError(f"{name!r} has to return (model, batches, loss), not {type(made).__name__}")
    model, batches, loss = made
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model of {name!r} has to be an nn.Module, not {type(model).__name__}")
    if not isinstance(batches, Dataset) and not isinstance(batches, Iterable):
        raise UsageError(f"the batches of {name!r} have to be a Dataset or an iterable, not {type(batches).__name__}")
    if not callable(loss):
        raise UsageError(f"the loss of {name!r} has to be a function of (model, batch), not {type(loss).__name__}")
    return model, batches, loss
