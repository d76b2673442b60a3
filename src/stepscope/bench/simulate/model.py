"""A transformer for simulated steps: plain modules, so that every parallel plan can take hold of them.

Dense or gated MLP, grouped attention, or experts whose tokens travel by all-to-all.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


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
    #: experts of each layer; 0: a plain MLP
    experts: int = 0
    experts_per_token: int = 0
    norm_bias: bool = True
    learned_positions: bool = True


class Attention(nn.Module):  # type: ignore[misc]
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
        """Return x mixed over the sequence."""
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):  # type: ignore[misc]
    """Two matrices, or three with a gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.d_model, shape.mlp_width, bias=False)
        self.gate = nn.Linear(shape.d_model, shape.mlp_width, bias=False) if shape.gated_mlp else None
        self.down = nn.Linear(shape.mlp_width, shape.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x through the MLP."""
        up = self.up(x)
        return self.down(F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up)


class ExpertMlp(nn.Module):  # type: ignore[misc]
    """This rank's experts; tokens are routed evenly, so that every simulated rank sends and receives the same."""

    def __init__(self, shape: Shape, group: Any) -> None:
        super().__init__()
        self.group, self.per_token = group, shape.experts_per_token
        ranks = dist.get_world_size(group)
        self.experts = nn.ModuleList(Mlp(shape) for _ in range(shape.experts // ranks))
        self.router = nn.Linear(shape.d_model, shape.experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weighted outputs of each token's experts."""
        tokens = x.flatten(0, 1)
        weight, _ = self.router(tokens).softmax(-1).topk(self.per_token, dim=-1)
        sent = tokens.repeat_interleave(self.per_token, dim=0)
        received = _Exchange.apply(sent, self.group)
        done = torch.cat([e(part) for e, part in zip(self.experts, received.chunk(len(self.experts)), strict=True)])
        back = _Exchange.apply(done, self.group).unflatten(0, (-1, self.per_token))
        return (back * weight.unsqueeze(-1)).sum(1).view_as(x)


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = torch.empty_like(gradient)
        dist.all_to_all_single(out, gradient.contiguous(), group=ctx.group)
        return out, None


class Block(nn.Module):  # type: ignore[misc]
    """One layer."""

    def __init__(self, shape: Shape, expert_group: Any) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.d_model, bias=shape.norm_bias)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.d_model, bias=shape.norm_bias)
        self.mlp = ExpertMlp(shape, expert_group) if shape.experts else Mlp(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x after attention and MLP."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """Embedding, layers, norm and head."""

    def __init__(self, shape: Shape, *, expert_group: Any = None) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.d_model)
        self.positions = nn.Embedding(shape.seq_len, shape.d_model) if shape.learned_positions else None
        self.layers = nn.ModuleList(Block(shape, expert_group) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.d_model, bias=shape.norm_bias)
        self.head = nn.Linear(shape.d_model, shape.vocab, bias=False)
        self.checkpoint = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(self.norm(x))
