"""FSDP2 (`fully_shard`): parameters, gradients and optimizer state in shards, gathered layer by layer when needed.

ZeRO-3 frees a layer's parameters after forward and gathers them again for backward: 1.5 times the traffic of DDP, least
memory. ZeRO-2 keeps them from forward to backward: the traffic of DDP, parameters whole in between. Hybrid is ZeRO-3
inside groups of ranks, such as those of a machine, and averages gradients over the groups: gathers stay inside.

In 16-bit training parameters are gathered and gradients reduced in 16 bit, which halves both; shards and optimizer
state stay in fp32.
"""

import os
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from stepscope.bench.data_parallel.implementations.averaging import share_weights
from stepscope.bench.data_parallel.implementations.parallel import Options, Parallel, trainable
from stepscope.bench.data_parallel.strategies import HYBRID_RANKS
from stepscope.errors import UsageError


class Fsdp2Zero3(Parallel):
    """Every block a unit of its own, the rest one more; parameters freed after forward."""

    sharded = True
    reshard_after_forward = True

    def __init__(self, model: nn.Module, options: Options) -> None:
        share_weights(model)
        mesh = self._mesh(trainable(model)[0].device.type)
        for unit in (*_blocks_of(model), model):
            fully_shard(
                unit,
                mesh=mesh,
                reshard_after_forward=self.reshard_after_forward,
                mp_policy=mixed_precision(options.precision),
            )
        self.model = model
        self.exchange = True
        self.optimizer = self._optimizer(model, options)

    def _mesh(self, device_type: str) -> DeviceMesh:
        return init_device_mesh(device_type, (dist.get_world_size(),))

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


class Fsdp2Hybrid(Fsdp2Zero3):
    """ZeRO-3 inside each group of ranks, gradients averaged over the groups."""

    def _mesh(self, device_type: str) -> DeviceMesh:
        world = dist.get_world_size()
        shards = hybrid_shards(world, on_this_machine=int(os.environ.get("LOCAL_WORLD_SIZE", world)))
        return _hybrid_mesh(device_type, (world // shards, shards), dist.group.WORLD)


def hybrid_shards(world_size: int, *, on_this_machine: int) -> int:
    """Return over how many ranks parameters are sharded: those of a machine, or half of them on a single machine.

    >>> hybrid_shards(16, on_this_machine=8), hybrid_shards(4, on_this_machine=4)
    (8, 2)
    """
    if 1 < on_this_machine < world_size and not world_size % on_this_machine:
        return on_this_machine
    if world_size < HYBRID_RANKS or world_size % 2:
        raise UsageError(f"hybrid sharding needs an even number of ranks, {HYBRID_RANKS} or more, not {world_size}")
    return world_size // 2


@cache
def _hybrid_mesh(device_type: str, shape: tuple[int, int], world: Any) -> DeviceMesh:
    return init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))


def mixed_precision(precision: str) -> MixedPrecisionPolicy:
    """Return in what parameters are gathered and gradients reduced: in fp32 unless training is in 16 bit."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) > 1]
    if not lists:
        return []
    largest = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))
    return [block for block in largest if any(p.requires_grad for p in block.parameters())]
