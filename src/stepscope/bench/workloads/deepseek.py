"""A DeepSeek-V3-style decoder: latent attention, dense first layers, then routed and shared experts.

Options: `num_experts` (8), `experts_per_token` (2), `shared_experts` (1), `expert_width` (d_model), `dense_layers` (1),
`balance_rate` (0.001; 0 leaves routing alone), `q_rank`, `kv_rank`, `head_width`, `rotary_width`, `attention`,
`checkpointing`.
"""

import torch
from torch import nn

from stepscope.bench.workloads.checkpointing import checked_policy, through
from stepscope.bench.workloads.experts import Experts, GatedMlp, rebalance
from stepscope.bench.workloads.gpt import next_token_loss
from stepscope.bench.workloads.latent_attention import LatentAttention, latent_sizes, rotary_angles
from stepscope.bench.workloads.loader import text_for
from stepscope.bench.workloads.workload import Workload, WorkloadSpec
from stepscope.errors import UsageError


class Block(nn.Module):  # type: ignore[misc]
    """Latent attention, then a dense MLP or experts, each added to its input."""

    def __init__(self, spec: WorkloadSpec, *, dense: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(spec.d_model), LatentAttention(spec)
        self.norm2 = nn.RMSNorm(spec.d_model)
        self.mlp = GatedMlp(spec.d_model, 4 * spec.d_model) if dense else _experts(spec)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Return the block's output, in the shape of its input."""
        x = x + self.attention(self.norm1(x), angles)
        return x + self.mlp(self.norm2(x))


class DeepSeek(nn.Module):  # type: ignore[misc]
    """Tokens in, scores of the next token out."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        dense = spec.option("dense_layers", 1)
        self.tokens = nn.Embedding(spec.vocab_size, spec.d_model)
        self.blocks = nn.ModuleList(Block(spec, dense=i < dense) for i in range(spec.num_layers))
        self.norm = nn.RMSNorm(spec.d_model)
        self.head = nn.Linear(spec.d_model, spec.vocab_size, bias=False)
        self.rotary_width = latent_sizes(spec)[1]
        self.checkpointing = checked_policy(spec.option("checkpointing", "none"))
        self.balance_rate = spec.option("balance_rate", 0.001)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the token after each token.

        Balancing by the last step's load happens here, before any block: blocks may be run twice (checkpointing), and
        both times have to route alike.
        """
        layers = [block.mlp for block in self.blocks if isinstance(block.mlp, Experts)]
        if self.training and self.balance_rate and layers:
            rebalance(layers, rate=self.balance_rate)
        angles = rotary_angles(tokens.shape[1], self.rotary_width, device=tokens.device)
        x = through(self.blocks, self.tokens(tokens), angles, policy=self.checkpointing)
        return self.head(self.norm(x))


def _build(spec: WorkloadSpec, device: torch.device, argument: str) -> Workload:
    _check(spec)
    return Workload(
        spec=spec,
        model=DeepSeek(spec).to(device),
        device=device,
        samples=text_for(spec),
        objective=next_token_loss,
        model_flops=_flops(spec),
    )


def _experts(spec: WorkloadSpec) -> Experts:
    routed, per_token, shared, width = _expert_sizes(spec)
    return Experts(spec.d_model, width=width, routed=routed, per_token=per_token, shared=shared)


def _expert_sizes(spec: WorkloadSpec) -> tuple[int, int, int, int]:
    return (
        spec.option("num_experts", 8),
        spec.option("experts_per_token", 2),
        spec.option("shared_experts", 1),
        spec.option("expert_width", spec.d_model),
    )


def _check(spec: WorkloadSpec) -> None:
    routed, per_token, _, _ = _expert_sizes(spec)
    rotary = latent_sizes(spec)[1]
    if spec.d_model % spec.num_heads and "head_width" not in spec.options:
        raise UsageError(f"d_model {spec.d_model} has to be a multiple of num_heads {spec.num_heads}")
    if not 1 <= per_token <= routed:
        raise UsageError(f"experts_per_token has to be from 1 to num_experts {routed}, not {per_token}")
    if rotary < 2 or rotary % 2:
        raise UsageError(f"rotary_width has to be even, not {rotary}: channels are rotated in pairs")


def _flops(spec: WorkloadSpec) -> int:
    d, heads = spec.d_model, spec.num_heads
    plain, rotary, q_rank, kv_rank = latent_sizes(spec)
    routed, per_token, shared, width = _expert_sizes(spec)
    queries = d * q_rank + q_rank * heads * (plain + rotary)
    keys_values = d * (kv_rank + rotary) + kv_rank * heads * 2 * plain
    attention = 2 * (queries + keys_values + heads * plain * d) + 2 * spec.seq_len * heads * (2 * plain + rotary)
    experts = 2 * (d * routed + 3 * d * width * (per_token + shared))
    dense_layers = min(spec.option("dense_layers", 1), spec.num_layers)
    layers = spec.num_layers * attention + dense_layers * 2 * 12 * d * d + (spec.num_layers - dense_layers) * experts
    return 3 * spec.batch_size * spec.seq_len * (layers + 2 * spec.vocab_size * d)
