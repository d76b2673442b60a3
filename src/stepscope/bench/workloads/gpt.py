"""A GPT: learned positions, causal attention, an MLP four times as wide, next-token loss.

Options: `kv_heads` (fewer than num_heads: grouped queries), `attention` (see `attention.KERNELS`),
`checkpointing` (see `checkpointing.POLICIES`), `mlp_ratio`.
"""

from typing import Any

import torch
from torch import nn

from stepscope.bench.workloads.attention import attend, checked_kernel
from stepscope.bench.workloads.checkpointing import checked_policy, through
from stepscope.bench.workloads.loader import text_for
from stepscope.bench.workloads.workload import Workload, WorkloadSpec
from stepscope.errors import UsageError


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention; `kv_heads` keys and values serve all query heads."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads = spec.num_heads, spec.option("kv_heads", spec.num_heads)
        self.width, self.kernel = spec.d_model // spec.num_heads, checked_kernel(spec.option("attention", "sdpa"))
        self.qkv = nn.Linear(spec.d_model, (self.heads + 2 * self.kv_heads) * self.width)
        self.out = nn.Linear(spec.d_model, spec.d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x mixed over the sequence."""
        heads = self.qkv(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return self.out(attend(q, k, v, kernel=self.kernel).transpose(1, 2).flatten(2))


class Block(nn.Module):  # type: ignore[misc]
    """Attention, then an MLP, each added to its input."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        hidden = spec.option("mlp_ratio", 4) * spec.d_model
        self.norm1, self.attention = nn.LayerNorm(spec.d_model), Attention(spec)
        self.norm2 = nn.LayerNorm(spec.d_model)
        self.mlp = nn.Sequential(nn.Linear(spec.d_model, hidden), nn.GELU(), nn.Linear(hidden, spec.d_model))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, in the shape of its input."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):  # type: ignore[misc]
    """Tokens in, scores of the next token out."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab_size, spec.d_model)
        self.positions = nn.Embedding(spec.seq_len, spec.d_model)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.norm = nn.LayerNorm(spec.d_model)
        self.head = nn.Linear(spec.d_model, spec.vocab_size, bias=False)
        self.checkpointing = checked_policy(spec.option("checkpointing", "none"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the token after each token."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(through(self.blocks, x, policy=self.checkpointing)))


def _build(spec: WorkloadSpec, device: torch.device, argument: str) -> Workload:
    _check(spec)
    return Workload(
        spec=spec,
        model=Gpt(spec).to(device),
        device=device,
        samples=text_for(spec),
        objective=next_token_loss,
        model_flops=_flops(spec),
    )


def next_token_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean cross entropy of the tokens that follow, in fp32 as is usual."""
    tokens, following = batch
    return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), following.flatten())


def _check(spec: WorkloadSpec) -> None:
    kv_heads = spec.option("kv_heads", spec.num_heads)
    if spec.d_model % spec.num_heads:
        raise UsageError(f"d_model {spec.d_model} has to be a multiple of num_heads {spec.num_heads}")
    if not isinstance(kv_heads, int) or kv_heads < 1 or spec.num_heads % kv_heads:
        raise UsageError(f"num_heads {spec.num_heads} has to be a multiple of kv_heads, not {kv_heads!r}")


def _flops(spec: WorkloadSpec) -> int:
    d, kv_share = spec.d_model, spec.option("kv_heads", spec.num_heads) / spec.num_heads
    products = 2 * d * d * (2 + 2 * kv_share + 2 * spec.option("mlp_ratio", 4))
    per_token = spec.num_layers * (products + 4 * spec.seq_len * d) + 2 * spec.vocab_size * d
    return int(3 * spec.batch_size * spec.seq_len * per_token)
