"""Data parallelism, several ways: the same gradients by different exchanges.

ddp                one all-reduce per parameter, after backward, one after the other
ddp_individual     the same all-reduces, all started at once after backward
ddp_individual_v2  each started during backward, as soon as its gradient is there
ddp_bucketed       gradients packed into buckets, each bucket started during backward
pytorch_ddp, fsdp2_zero3, fsdp2_zero2, fsdp2_hybrid, zero1, deepspeed_zero1|2|3    adapters to existing implementations
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from weakref import proxy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from stepscope.errors import UsageError
from stepscope.lab.bench.config import TrainConfig
from stepscope.lab.bench.strategies import HYBRID_RANKS, SHARDED, checked_names

_FIRST_BUCKET_MB = 1.0
_MB = 2**20

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Options(TrainConfig):
    """Options of the implementations, as a configuration has them; each uses its own."""

    micro_batch_size: int = 1


def parallel(name: str, model: nn.Module, options: Options) -> "Parallel":
    """Return the model made data-parallel by the implementation of that name."""
    made = _CLASSES[checked_names((name,))[0]](model, options)
    made.sharded = name in SHARDED
    return made


class Parallel:
    """A model whose gradients, once `finish()` returned, are the means over all ranks.

    `exchange` is set before each micro-batch: only the last one's backward has to exchange gradients.
    """

    sharded = False

    def __init__(self, model: nn.Module, options: Options) -> None:
        _share_weights(model)
        self.model = model
        self.exchange = True
        self.optimizer = self._optimizer(model, options)

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass."""
        loss.backward()

    def finish(self) -> None:
        """Wait until the gradients are those of all ranks."""

    def update(self, scaler: Any) -> None:
        """Step the optimizer, through the loss scaler, and free the gradients."""
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> Tensors:
        """Return the whole weights by name; a collective."""
        return {name: _whole(p.detach()) for name, p in self.model.named_parameters()}

    def gradients(self) -> Tensors | None:
        """Return the whole gradients by name, None where they are not available; a collective."""
        return {name: _whole(p.grad) for name, p in self.model.named_parameters() if p.grad is not None}

    def _optimizer(self, model: nn.Module, options: Options) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=True)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that get gradients, each once."""
    return [p for p in model.parameters() if p.requires_grad]


def _share_weights(model: nn.Module) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), 0)


def _start_mean(tensor: torch.Tensor) -> Any:
    if dist.get_backend() == "nccl":
        return dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    tensor.div_(dist.get_world_size())
    return dist.all_reduce(tensor, op=dist.ReduceOp.SUM, async_op=True)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


class _Ddp(Parallel):
    def finish(self) -> None:
        for parameter in trainable(self.model):
            _start_mean(_gradient(parameter)).wait()


class _DdpIndividual(Parallel):
    def finish(self) -> None:
        for work in [_start_mean(_gradient(parameter)) for parameter in trainable(self.model)]:
            work.wait()


class _Overlapped(Parallel):
    """Exchanges groups of gradients during backward, each started by the hook that completes it.

    Collectives are matched by their order, so every rank starts the groups in the same one: a group that is ready
    early waits until it is its turn.
    """

    def __init__(self, model: nn.Module, options: Options) -> None:
        super().__init__(model, options)
        self._groups = self._grouped(trainable(model)[::-1], options)
        self._works: list[Any] = []
        self._reset()
        me = proxy(self)  # hooks are held by the parameters: a reference to us would never free the model
        for place, group in enumerate(self._groups):
            for parameter in group:
                parameter.register_post_accumulate_grad_hook(lambda _, place=place: me._on_gradient(place))

    def finish(self) -> None:
        for place in range(self._next, len(self._groups)):
            self._start(place)
        for work in self._works:
            work.wait()
        self._reset()

    def _reset(self) -> None:
        self._missing, self._next = [len(group) for group in self._groups], 0
        self._works.clear()

    def _on_gradient(self, place: int) -> None:
        if self.exchange:
            self._missing[place] -= 1
            while self._next < len(self._groups) and self._missing[self._next] <= 0:
                self._start(self._next)
                self._next += 1

    def _grouped(self, parameters: list[nn.Parameter], options: Options) -> list[list[nn.Parameter]]:
        return [[parameter] for parameter in parameters]

    def _start(self, place: int) -> None:
        raise NotImplementedError


class _DdpIndividualV2(_Overlapped):
    _stream: Any = None

    def finish(self) -> None:
        with self._side_stream():
            super().finish()
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _start(self, place: int) -> None:
        grad = _gradient(self._groups[place][0])
        with self._side_stream():
            if self._stream is not None:
                grad.record_stream(self._stream)
            self._works.append(_start_mean(grad))

    def _side_stream(self) -> Any:
        if not self._groups[0][0].is_cuda:
            return nullcontext()
        self._stream = self._stream or torch.cuda.Stream()
        if torch.cuda.current_stream() != self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())  # the gradient has to be there first
        return torch.cuda.stream(self._stream)


class _DdpBucketed(_Overlapped):
    def __init__(self, model: nn.Module, options: Options) -> None:
        super().__init__(model, options)
        self._flat = [
            torch.empty(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
            for group in self._groups
        ]

    def _grouped(self, parameters: list[nn.Parameter], options: Options) -> list[list[nn.Parameter]]:
        return partition(parameters, size_mb=options.bucket_size_mb)

    def _start(self, place: int) -> None:
        flat, group = self._flat[place], self._groups[place]
        views = [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in group]), group, strict=True)]
        torch._foreach_copy_(views, [_gradient(p) for p in group])
        for parameter, view in zip(group, views, strict=True):
            parameter.grad = view
        self._works.append(_start_mean(flat))


def partition(parameters: list[nn.Parameter], *, size_mb: float) -> list[list[nn.Parameter]]:
    """Return the parameters in buckets, in order: one is closed once it has reached its size or the kind changes."""
    buckets: list[list[nn.Parameter]] = []
    size_bytes, limit_bytes = 0.0, 0.0
    for p in parameters:
        if size_bytes >= limit_bytes or (buckets[-1][0].dtype, buckets[-1][0].device) != (p.dtype, p.device):
            limit_bytes = _MB * (size_mb if buckets else min(_FIRST_BUCKET_MB, size_mb))
            buckets.append([])
            size_bytes = 0.0
        buckets[-1].append(p)
        size_bytes += p.numel() * p.element_size()
    return buckets


class _PytorchDdp(Parallel):
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
        return bool(self.model.require_backward_grad_sync)

    @exchange.setter
    def exchange(self, yes: bool) -> None:
        self.model.require_backward_grad_sync = yes

    def weights(self) -> Tensors:
        return {name.removeprefix("module."): tensor for name, tensor in super().weights().items()}

    def gradients(self) -> Tensors | None:
        return {name.removeprefix("module."): tensor for name, tensor in (super().gradients() or {}).items()}


class _Zero1(_PytorchDdp):
    def _optimizer(self, model: nn.Module, options: Options) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # imports FSDP2

        return ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW, lr=options.lr, foreach=True
        )


class _Fsdp2(Parallel):
    """FSDP2 (`fully_shard`), every block a unit, the rest one more.

    ZeRO-3 frees a layer's parameters after forward and gathers them again for backward: 1.5 times the traffic of DDP,
    least memory. ZeRO-2 keeps them gathered until backward is over: the traffic of DDP. Hybrid is ZeRO-3 inside groups
    of ranks, such as a machine, and averages gradients over the groups. In 16-bit training parameters are gathered and
    gradients reduced in 16 bit, which halves both; shards and optimizer state stay in fp32.
    """

    def __init__(self, model: nn.Module, options: Options, *, reshard: bool = True, hybrid: bool = False) -> None:
        _share_weights(model)
        device_type, world = trainable(model)[0].device.type, dist.get_world_size()
        if hybrid:
            shards = hybrid_shards(world, on_this_machine=int(os.environ.get("LOCAL_WORLD_SIZE", world)))
            mesh = _hybrid_mesh(device_type, (world // shards, shards), dist.group.WORLD)
        else:
            mesh = init_device_mesh(device_type, (world,))
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision)
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # 1.5 s, which others need not wait for

        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
        for unit in (*_blocks_of(model), model):
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        self.model = model
        self.exchange = True
        self.optimizer = self._optimizer(model, options)

    @property
    def exchange(self) -> bool:
        return self._exchange

    @exchange.setter
    def exchange(self, yes: bool) -> None:
        self._exchange = yes
        self.model.set_requires_gradient_sync(yes)


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


def _blocks_of(model: nn.Module) -> list[nn.Module]:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) > 1]
    largest = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=())
    return [block for block in largest if trainable(block)]


class _Deepspeed(Parallel):
    def __init__(self, model: nn.Module, options: Options, *, stage: int) -> None:
        import deepspeed

        _share_weights(model)
        self._stage = stage
        config = {
            "train_batch_size": options.micro_batch_size * options.grad_accum * dist.get_world_size(),
            "train_micro_batch_size_per_gpu": options.micro_batch_size,
            "gradient_accumulation_steps": options.grad_accum,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": int(options.bucket_size_mb * _MB / 4)},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        self.model, self.optimizer, _, _ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=options.lr),
            config=config,
            dist_init_required=False,
        )
        self.exchange = True

    def backward(self, loss: torch.Tensor) -> None:
        self.model.backward(loss * self.model.gradient_accumulation_steps())
        if not self.exchange:
            self.model.step()  # counts the micro-batch

    def update(self, scaler: Any) -> None:
        self.model.step()

    def weights(self) -> Tensors:
        import deepspeed

        named = dict(self.model.module.named_parameters())
        with deepspeed.zero.GatheredParameters(list(named.values()), enabled=self._stage == 3):
            return {name: p.detach().clone() for name, p in named.items()}

    def gradients(self) -> Tensors | None:
        return None


_CLASSES: dict[str, Callable[[nn.Module, Options], Parallel]] = {
    "ddp": _Ddp,
    "ddp_individual": _DdpIndividual,
    "ddp_individual_v2": _DdpIndividualV2,
    "ddp_bucketed": _DdpBucketed,
    "pytorch_ddp": _PytorchDdp,
    "zero1": _Zero1,
    "fsdp2_zero2": partial(_Fsdp2, reshard=False),
    "fsdp2_zero3": _Fsdp2,
    "fsdp2_hybrid": partial(_Fsdp2, hybrid=True),
    "deepspeed_zero1": partial(_Deepspeed, stage=1),
    "deepspeed_zero2": partial(_Deepspeed, stage=2),
    "deepspeed_zero3": partial(_Deepspeed, stage=3),
}
