"""PyTorch's DistributedDataParallel: buckets and overlap in C++, with its options."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepscope.bench.data_parallel.implementations.parallel import Options, Parallel, Tensors


class PytorchDdp(Parallel):
    """DDP as users have it. Buffers stay each rank's own, as in the other implementations."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        wrapped = DistributedDataParallel(
            model,
            bucket_cap_mb=options.bucket_size_mb,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
            find_unused_parameters=options.find_unused_parameters,
            broadcast_buffers=False,
        )
        super().__init__(wrapped, options)

    @property
    def exchange(self) -> bool:
        """Whether the next backward exchanges gradients (what `no_sync()` switches off)."""
        return bool(self.model.require_backward_grad_sync)

    @exchange.setter
    def exchange(self, yes: bool) -> None:
        self.model.require_backward_grad_sync = yes

    def weights(self) -> Tensors:
        """Return the weights under the names they have without DDP."""
        return _plain(super().weights())

    def gradients(self) -> Tensors | None:
        """Return the gradients under the names they have without DDP."""
        return _plain(super().gradients() or {})


def _plain(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
