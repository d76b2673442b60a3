"""State in host memory: the optimizer's, or the parameters with everything that belongs to them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class HostOptimizer:
    """AdamW on the host: gradients travel there, master weights and moments stay there, new weights travel back."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, learning_rate: float) -> None:
        self._parameters = list(parameters)
        self._masters = [nn.Parameter(_pinned(p)) for p in self._parameters]
        for master in self._masters:
            master.grad = _pinned(master)
        self._adam = torch.optim.AdamW(self._masters, lr=learning_rate, fused=True)
        self.param_groups = [{**self._adam.param_groups[0], "params": self._parameters}]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Update all parameters."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if parameter.grad is not None:
                master.grad.copy_(parameter.grad, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the host reads what the device has just sent
        self._adam.step()
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            parameter.copy_(master, non_blocking=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the device's gradients."""
        for parameter in self._parameters:
            parameter.grad = None


def shard_on_host(model: nn.Module) -> None:
    """Keep parameters, gradients and optimizer state on the host: FSDP2 brings each block to the device when needed."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    policy: Any = CPUOffloadPolicy()
    for block in getattr(model, "blocks", ()):
        fully_shard(block, offload_policy=policy)
    fully_shard(model, offload_policy=policy)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor.detach())
