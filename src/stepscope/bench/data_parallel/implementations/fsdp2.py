"""FSDP2 (`fully_shard`): parameters, gradients and optimizer state in shards, gathered layer by layer when needed.

ZeRO-3 frees a layer's parameters after forward and gathers them again for backward: 1.5 times the traffic of DDP, least
memory. ZeRO-2 keeps them from forward to backward: the traffic of DDP, parameters whole in between. In 16-bit training
parameters are gathered and gradients reduced in 16 bit, which halves both; shards and optimizer state stay in fp32.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from stepscope.bench.data_parallel.implementations.averaging import share_weights
from stepscope.bench.data_parallel.implementations.parallel import Options, Parallel, trainable


class Fsdp2Zero3(Parallel):
    """Every block a unit of its own, the rest one more; parameters freed after forward."""

    sharded = True
    reshard_after_forward = True

    def __init__(self, model: nn.Module, options: Options) -> None:
        share_weights(model)
        mesh = init_device_mesh(trainable(model)[0].device.type, (dist.get_world_size(),))
        for unit in (*blocks_of(model), model):
            fully_shard(
                unit,
                mesh=mesh,
                reshard_after_forward=self.reshard_after_forward,
                mp_policy=mixed_precision(options.precision),
            )
        self.model = model
        self.exchange = True
        self.optimizer = self._optimizer(model, options)

    @property
    def exchange(self) -> bool:
        """Whether the next backward reduces gradients."""
        return self._exchange

    @exchange.setter
    def exchange(self, yes: bool) -> None:
        self._exchange = yes
        self.model.set_requires_gradient_sync(yes)


class Fsdp2Zero2(Fsdp2Zero3):
    """The same, parameters kept until backward is over."""

    reshard_after_forward = False


def mixed_precision(precision: str) -> MixedPrecisionPolicy:
    """Return in what parameters are gathered and gradients reduced: in fp32 unless training is in 16 bit."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model: the children of the list that holds most of the parameters, none without one."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) > 1]
    if not lists:
        return []
    largest = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))
    return [block for block in largest if any(p.requires_grad for p in block.parameters())]
