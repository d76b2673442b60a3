"""What a training loop needs of a data-parallel model, whichever way its gradients are exchanged."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepscope.bench.data_parallel.implementations.averaging import share_weights

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Options:
    """What the implementations can be told; each takes what concerns it."""

    bucket_size_mb: float = 25.0
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    lr: float = 1e-3
    micro_batch_size: int = 1
    grad_accum: int = 1
    #: of what is trained; what is sharded travels in it
    precision: str = "fp32"


class Parallel:
    """A model whose gradients, once `finish()` returned, are the means over all ranks.

    `exchange` is set before each micro-batch: only the last one's backward has to exchange gradients.
    """

    #: whether a rank holds only a part of the gradients
    sharded = False

    def __init__(self, model: nn.Module, options: Options) -> None:
        share_weights(model)
        self.model = model
        self.exchange = True
        self.optimizer = self._optimizer(model, options)

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass."""
        loss.backward()

    def finish(self) -> None:
        """Wait until the gradients are those of all ranks."""

    def update(self, scaler: Any) -> None:
        """Step the optimizer, through the loss scaler, and forget the gradients."""
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def weights(self) -> Tensors:
        """Return the whole weights by name; every rank has to call it."""
        return {name: _whole(p.detach()) for name, p in self.model.named_parameters()}

    def gradients(self) -> Tensors | None:
        """Return the whole gradients by name, None where they are not kept; every rank has to call it."""
        return {name: _whole(p.grad) for name, p in self.model.named_parameters() if p.grad is not None}

    def _optimizer(self, model: nn.Module, options: Options) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=True)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that get gradients, each once."""
    return [p for p in model.parameters() if p.requires_grad]
