"""The simulated model spread over ranks by PyTorch's own means: meshes, tensor parallel plans, FSDP; DDP's buckets."""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from stepscope.bench.simulate.model import Transformer

_BUCKET_BYTES = 25 * 2**20
_FIRST_BUCKET_BYTES = 2**20


@dataclass(frozen=True)
class Mesh:
    """The dimensions of a job and what their groups are called."""

    data: DeviceMesh
    tensor: DeviceMesh | None
    expert_group: Any
    #: ranks of each of this rank's groups -> dp, tp or ep
    names: dict[tuple[int, ...], str]

    def loss_context(self) -> Any:
        """Return what the loss is computed in: with a split vocabulary every rank has a part of the logits."""
        return loss_parallel() if self.tensor is not None else contextlib.nullcontext()


def parallel_mesh(data: int, tensor: int, expert: int = 1, *, device: str = "cpu") -> Mesh:
    """Return the mesh of a job; every rank of the default group has to call it."""
    whole = init_device_mesh(device, (data, tensor), mesh_dim_names=("dp", "tp"))
    names = {tuple(dist.get_process_group_ranks(whole["tp"].get_group())): "tp"} if tensor > 1 else {}
    names[tuple(dist.get_process_group_ranks(whole["dp"].get_group()))] = "dp"
    expert_group = None
    if expert > 1:
        inner = init_device_mesh(device, (data // expert, expert), mesh_dim_names=("replica", "ep"))
        expert_group = inner["ep"].get_group()
        names = {**names, tuple(dist.get_process_group_ranks(expert_group)): "ep"}
    return Mesh(whole["dp"], whole["tp"] if tensor > 1 else None, expert_group, names)


def parallelize(model: Transformer, mesh: Mesh, strategy: str, *, mixed: bool = False) -> "DdpBuckets | None":
    """Return DDP's buckets where the strategy has them, after spreading the model in place.

    With `mixed` FSDP keeps fp32 shards, gathers weights and scatters gradients in bf16.
    """
    if mesh.tensor is not None:
        _split_matrices(model, mesh.tensor)
    if strategy == "ddp":
        return DdpBuckets(model, mesh.data.get_group()) if mesh.data.size() > 1 else None
    ignored = {p for layer in model.layers for p in _expert_weights(layer)} if mesh.expert_group else set()
    given: dict[str, Any] = {"mesh": mesh.data, "ignored_params": ignored}
    if mixed:
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=strategy == "zero3", **given)
    fully_shard(model, reshard_after_forward=False, **given)
    return None


class DdpBuckets:
    """Gradients all-reduced in buckets as PyTorch's DDP fills them: in the order in which they become ready."""

    def __init__(self, model: nn.Module, group: Any) -> None:
        self.buffers: list[torch.Tensor] = []
        self._model, self._group = model, group
        self._ready: list[torch.Tensor] = []
        self._filled_bytes, self._limit_bytes = 0, _FIRST_BUCKET_BYTES

    def allocate(self) -> None:
        """Make the buffers, which live as long as the job and are as large as all gradients, and wait for those."""
        for parameter in self._model.parameters():
            parameter.register_post_accumulate_grad_hook(self._on_ready)
        local = [_local(p) for p in self._model.parameters()]
        self.buffers = [torch.empty(sum(p.numel() for p in local), dtype=local[0].dtype, device=local[0].device)]

    def finish(self) -> None:
        """Reduce the last bucket and start over."""
        self._reduce()
        self._limit_bytes = _FIRST_BUCKET_BYTES

    def _on_ready(self, parameter: torch.Tensor) -> None:
        gradient = _local(parameter.grad)
        self._ready.append(gradient)
        self._filled_bytes += gradient.numel() * gradient.element_size()
        if self._filled_bytes >= self._limit_bytes:
            self._reduce()

    def _reduce(self) -> None:
        if self._ready:
            count = sum(g.numel() for g in self._ready)
            dist.all_reduce(self.buffers[0][:count], group=self._group)
        self._ready, self._filled_bytes, self._limit_bytes = [], 0, _BUCKET_BYTES


def _local(tensor: Any) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _split_matrices(model: Transformer, mesh: DeviceMesh) -> None:
    whole = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    for layer in model.layers:
        plan = {
            "attention": whole,
            **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            "attention.out": RowwiseParallel(),
            "mlp": whole,
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(),
        }
        if model.shape.gated_mlp:
            plan["mlp.gate"] = ColwiseParallel()
        parallelize_module(layer, mesh, plan)
    ends = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)


def _expert_weights(layer: nn.Module) -> list[nn.Parameter]:
    experts = getattr(layer.get_submodule("mlp"), "experts", None)
    return list(experts.parameters()) if experts is not None else []
