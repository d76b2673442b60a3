"""The mean of a tensor over all ranks, started now and waited for later; and equal weights to begin with."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def start_mean(tensor: torch.Tensor) -> Any:
    """Return the work that replaces `tensor` by its mean over ranks; call its `wait()` before use.

    NCCL averages while it reduces. Gloo only sums: there each rank divides first, which also keeps sums small.
    """
    if dist.get_backend() == "nccl":
        return dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    tensor.div_(dist.get_world_size())
    return dist.all_reduce(tensor, op=dist.ReduceOp.SUM, async_op=True)


def gradient(parameter: nn.Parameter) -> torch.Tensor:
    """Return the parameter's gradient; zeros where this rank's batch did not reach it, for others' may have."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def share_weights(model: nn.Module) -> None:
    """Give every rank the weights and buffers of rank 0."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), 0)
