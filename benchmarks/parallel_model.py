"""A GPT with a matrix each for queries, keys and values, spread over ranks by DDP, FSDP2 and tensor parallelism.

The model of the jobs that predictions of traffic and memory are held against.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
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


@dataclass(frozen=True)
class Shape:
    """The numbers of the model."""

    layers: int
    d_model: int
    heads: int
    vocab: int
    seq_len: int
    mlp_width: int
    gated_mlp: bool = False
    kv_heads: int | None = None


class Attention(nn.Module):
    """Causal attention with heads that may share keys and values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.d_model // shape.heads
        kv_width = self.width * (shape.kv_heads or shape.heads)
        self.query = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.key = nn.Linear(shape.d_model, kv_width, bias=False)
        self.value = nn.Linear(shape.d_model, kv_width, bias=False)
        self.out = nn.Linear(shape.d_model, shape.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two matrices, or three with a gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.d_model, shape.mlp_width, bias=False)
        self.gate = nn.Linear(shape.d_model, shape.mlp_width, bias=False) if shape.gated_mlp else None
        self.down = nn.Linear(shape.mlp_width, shape.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up(x)
        return self.down(F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up)


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.d_model)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.d_model)
        self.mlp = Mlp(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.d_model)
        self.positions = nn.Embedding(shape.seq_len, shape.d_model)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.d_model)
        self.head = nn.Linear(shape.d_model, shape.vocab, bias=False)
        self.checkpoint = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Mesh:
    """The dimensions of a job."""

    data: DeviceMesh
    tensor: DeviceMesh | None

    def loss_context(self) -> Any:
        """Return what the loss is computed in: with a split vocabulary every rank has a part of the logits."""
        return loss_parallel() if self.tensor is not None else contextlib.nullcontext()


def parallel_mesh(data: int, tensor: int, *, device: str = "cpu") -> Mesh:
    """Return the mesh of a job; every rank of the default group has to call it."""
    whole = init_device_mesh(device, (data, tensor), mesh_dim_names=("dp", "tp"))
    return Mesh(whole["dp"], whole["tp"] if tensor > 1 else None)


def parallelize(model: Transformer, mesh: Mesh, strategy: str, *, mixed: bool = False) -> None:
    """Spread the model in place: `zero2` or `zero3` by FSDP2, its matrices over the tensor ranks.

    With `mixed` FSDP keeps fp32 shards, gathers weights and scatters gradients in bf16.
    """
    if mesh.tensor is not None:
        _split_matrices(model, mesh.tensor)
    given: dict[str, Any] = {"mesh": mesh.data}
    if mixed:
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=strategy == "zero3", **given)
    fully_shard(model, reshard_after_forward=False, **given)


def _split_matrices(model: Transformer, mesh: DeviceMesh) -> None:
    """Split every matrix over the mesh: columns first, rows second, the vocabulary at both ends."""
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
