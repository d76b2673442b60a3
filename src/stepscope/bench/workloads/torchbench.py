"""A model of TorchBench, where it is installed: its own model and example inputs, trained on their mean square."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from stepscope.bench.workloads.user_defined import GivenBatches
from stepscope.bench.workloads.workload import Workload, WorkloadSpec
from stepscope.errors import UsageError


def _build(spec: WorkloadSpec, device: torch.device, argument: str) -> Workload:
    model, inputs = _load(spec, device, argument)
    return GivenBatches(
        spec=spec,
        model=model.to(device),
        device=device,
        samples=torch.utils.data.Dataset(),
        objective=_loss,
        given=[inputs],
    )


def _load(spec: WorkloadSpec, device: torch.device, name: str) -> tuple[nn.Module, Any]:
    if find_spec("torchbenchmark") is None:
        raise UsageError(f"workload torchbench:{name} needs TorchBench, which is not installed here; install it")
    try:
        found = import_module("torchbenchmark").load_model_by_name(name)
    except (ModuleNotFoundError, RuntimeError) as error:
        raise UsageError(f"TorchBench has no usable model {name!r}: {error}") from error
    model, inputs = found(test="train", device=str(device), batch_size=spec.batch_size).get_module()
    return model, inputs


def _loss(model: nn.Module, inputs: Any) -> torch.Tensor:
    out = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    tensors = [t for t in _tensors(out) if t.is_floating_point()]
    return torch.stack([t.float().square().mean() for t in tensors]).sum()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
