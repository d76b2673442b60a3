"""Decoders of the benchmarks: a GPT, and a DeepSeek-V3-style model with latent attention and experts.

Options of both: `attention` (a kernel of `KERNELS`), `checkpointing` (a policy of `POLICIES`). GPT: `kv_heads`,
`mlp_ratio` (4). DeepSeek: `num_experts` (8), `experts_per_token` (2), `shared_experts` (1), `expert_width` (d_model),
`dense_layers` (1), `balance_rate` (0.001; 0 leaves routing alone), `q_rank`, `kv_rank`, `head_width`, `rotary_width`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stepscope.errors import UsageError
from stepscope.lab.bench.config import WorkloadSpec

_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# sdpa: PyTorch chooses; unfused: three operators written out; the others: one implementation of SDPA
_KERNELS = ("sdpa", "unfused", *_BACKENDS)
# none: store all; selective: store only matrix products and attention; half: every other block; full: every block
_POLICIES = ("none", "selective", "half", "full")


def _checked(spec: WorkloadSpec, option: str, choices: tuple[str, ...]) -> str:
    chosen: str = spec.option(option, choices[0])
    if chosen not in choices:
        raise UsageError(f"{option} has to be one of {', '.join(choices)}, not {chosen!r}")
    return chosen


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kernel: str) -> torch.Tensor:
    shared = q.shape[1] != k.shape[1]
    if kernel == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
    if shared:  # not every kernel supports shared heads
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    if kernel == "unfused":
        length = q.shape[-2]
        future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ v
    with sdpa_kernel(_BACKENDS[kernel]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _through(blocks: Iterable[nn.Module], x: torch.Tensor, *args: Any, policy: str) -> torch.Tensor:
    for index, block in enumerate(blocks):
        if policy == "full" or (policy == "half" and index % 2 == 0):
            x = checkpoint(block, x, *args, use_reentrant=False)
        elif policy == "selective":
            contexts = partial(create_selective_checkpoint_contexts, _keep_products)
            x = checkpoint(block, x, *args, use_reentrant=False, context_fn=contexts)
        else:
            x = block(x, *args)
    return x


def _keep_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = getattr(operator, "__name__", str(operator))
    product = name.split(".")[0] in ("mm", "bmm", "addmm", "baddbmm") or "dot_product" in name
    return CheckpointPolicy.MUST_SAVE if product else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):  # type: ignore[misc]
    """Attention, then an MLP, each added to its input."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(width), attention, norm(width), mlp

    def forward(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), *args)
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention; `kv_heads` keys and values serve all query heads."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads = spec.num_heads, spec.option("kv_heads", spec.num_heads)
        self.width, self.kernel = spec.d_model // spec.num_heads, _checked(spec, "attention", _KERNELS)
        self.qkv = nn.Linear(spec.d_model, (self.heads + 2 * self.kv_heads) * self.width)
        self.out = nn.Linear(spec.d_model, spec.d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return self.out(_attend(q, k, v, self.kernel).transpose(1, 2).flatten(2))


class Gpt(nn.Module):  # type: ignore[misc]
    """Tokens in, scores of the next token out."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        d, hidden, kv_heads = spec.d_model, spec.option("mlp_ratio", 4) * spec.d_model, spec.option("kv_heads", 1)
        if d % spec.num_heads:
            raise UsageError(f"d_model {d} has to be a multiple of num_heads {spec.num_heads}")
        if not isinstance(kv_heads, int) or kv_heads < 1 or spec.num_heads % kv_heads:
            raise UsageError(f"num_heads {spec.num_heads} has to be a multiple of kv_heads, not {kv_heads!r}")
        self.tokens, self.positions = nn.Embedding(spec.vocab_size, d), nn.Embedding(spec.seq_len, d)
        self.blocks = nn.ModuleList(
            Block(
                d, nn.LayerNorm, Attention(spec), nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))
            )
            for _ in range(spec.num_layers)
        )
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, spec.vocab_size, bias=False)
        self.checkpointing = _checked(spec, "checkpointing", _POLICIES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(_through(self.blocks, x, policy=self.checkpointing)))


def gpt_flops(spec: WorkloadSpec) -> int:
    """Return FLOPs of forward and backward.

    3 x forward; per token and layer 2 x weights of the products + 4 S D for attention; 2 V D for the head.
    """
    d, kv_share = spec.d_model, spec.option("kv_heads", spec.num_heads) / spec.num_heads
    products = 2 * d * d * (2 + 2 * kv_share + 2 * spec.option("mlp_ratio", 4))
    per_token = spec.num_layers * (products + 4 * spec.seq_len * d) + 2 * spec.vocab_size * d
    return int(3 * spec.batch_size * spec.seq_len * per_token)


class GatedMlp(nn.Module):  # type: ignore[misc]
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, width, bias=False)
        self.up = nn.Linear(d_model, width, bias=False)
        self.down = nn.Linear(width, d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):  # type: ignore[misc]
    """`shared` experts that see every token and `routed` ones of which each token sees `per_token`.

    Each token is routed to the experts of its `per_token` highest (sigmoid score + bias); their outputs are weighted by
    the scores alone, so the bias moves load without touching gradients. After each step, experts with more than their
    share of tokens get a slightly lower bias, the others a higher one (Wang et al. 2024, as in DeepSeek-V3).
    """

    def __init__(self, d_model: int, *, width: int, routed: int, per_token: int, shared: int) -> None:
        super().__init__()
        self.per_token = per_token
        self.router = nn.Linear(d_model, routed, bias=False)
        self.experts = nn.ModuleList(GatedMlp(d_model, width) for _ in range(routed))
        self.shared = GatedMlp(d_model, shared * width) if shared else None
        self.register_buffer("bias", torch.zeros(routed))
        self.register_buffer("load", torch.zeros(routed), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        chosen, weights = self.route(tokens)
        out = self._routed(tokens, chosen, weights).view_as(x)
        return out if self.shared is None else out + self.shared(x)

    def route(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (tokens, per_token) experts and their weights, which sum to 1."""
        with torch.autocast(tokens.device.type, enabled=False):  # routing by rounded scores would flip choices
            scores = torch.sigmoid(nn.functional.linear(tokens.float(), self.router.weight.float()))
        chosen = (scores.detach() + self.bias).topk(self.per_token, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if self.training:
            self.load += torch.bincount(chosen.flatten(), minlength=len(self.experts))
        return chosen, weights / weights.sum(-1, keepdim=True)

    def _routed(self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        blocks = tokens[order // self.per_token].split(counts)
        done = torch.cat([expert(block) for expert, block in zip(self.experts, blocks, strict=True)])
        weighted = done * weights.flatten()[order, None].to(done.dtype)
        return torch.zeros_like(tokens, dtype=done.dtype).index_add(0, order // self.per_token, weighted)


@torch.no_grad()  # type: ignore[untyped-decorator]
def rebalance(layers: list[Experts], *, rate: float) -> None:
    """Move each layer's bias by `rate` against the load since the last call, counted over all ranks."""
    loads = torch.stack([layer.load for layer in layers])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(loads)
    for layer, load in zip(layers, loads, strict=True):
        layer.bias += rate * torch.sign(load.mean() - load)
        layer.load.zero_()


class LatentAttention(nn.Module):  # type: ignore[misc]
    """Causal latent attention: queries, keys and values from low-rank latents, positions from a separate part.

    x -> q_down -> norm -> q_up  -> heads x (plain | rotary)          queries
    x -> kv_down -> norm -> kv_up -> heads x (plain keys | values)    keys and values from one latent
    x -> kv_down -> one rotary key, shared by all heads               the only part that depends on positions
    """

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.heads, self.kernel = spec.num_heads, _checked(spec, "attention", _KERNELS)
        self.plain, self.rotary, self.q_rank, self.kv_rank = _latent_sizes(spec)
        self.q_down = nn.Linear(spec.d_model, self.q_rank, bias=False)
        self.q_norm = nn.RMSNorm(self.q_rank)
        self.q_up = nn.Linear(self.q_rank, self.heads * (self.plain + self.rotary), bias=False)
        self.kv_down = nn.Linear(spec.d_model, self.kv_rank + self.rotary, bias=False)
        self.kv_norm = nn.RMSNorm(self.kv_rank)
        self.kv_up = nn.Linear(self.kv_rank, self.heads * 2 * self.plain, bias=False)
        self.out = nn.Linear(self.heads * self.plain, spec.d_model, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        q = _heads(self.q_up(self.q_norm(self.q_down(x))), self.heads)
        q_plain, q_rotary = q.split([self.plain, self.rotary], dim=-1)
        latent, k_rotary = self.kv_down(x).split([self.kv_rank, self.rotary], dim=-1)
        k_plain, v = _heads(self.kv_up(self.kv_norm(latent)), self.heads).chunk(2, dim=-1)
        shared = rotated(k_rotary.unsqueeze(1), angles).expand(-1, self.heads, -1, -1)
        q = torch.cat([q_plain, rotated(q_rotary, angles)], dim=-1)
        k = torch.cat([k_plain, shared], dim=-1)
        return self.out(_attend(q, k, v, self.kernel).transpose(1, 2).flatten(2))


def _latent_sizes(spec: WorkloadSpec) -> tuple[int, int, int, int]:
    """Return widths of a head's plain and rotary part, and ranks of the query and key-value latents.

    DeepSeek-V3 has 128, 64, 1536 and 512 for a d_model of 7168 and 128 heads; the same proportions, roughly.
    """
    plain = spec.option("head_width", spec.d_model // spec.num_heads)
    rotary = spec.option("rotary_width", max(plain // 4 * 2, 2))
    q_rank = spec.option("q_rank", max(spec.d_model // 4, 1))
    kv_rank = spec.option("kv_rank", max(spec.d_model // 8, 1))
    return plain, rotary, q_rank, kv_rank


def rotary_angles(seq_len: int, width: int, *, device: torch.device) -> torch.Tensor:
    """Return the angle of each position and pair of channels, (seq_len, width / 2)."""
    speeds = 10000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    return torch.arange(seq_len, device=device)[:, None] * speeds


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return x with each pair of channels turned by its position's angle; lengths stay."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class DeepSeek(nn.Module):  # type: ignore[misc]
    """Tokens in, scores of the next token out: latent attention, dense first layers, then experts."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        d, dense, rotary = spec.d_model, spec.option("dense_layers", 1), _latent_sizes(spec)[1]
        routed, per_token, shared, width = _expert_sizes(spec)
        if d % spec.num_heads and "head_width" not in spec.options:
            raise UsageError(f"d_model {d} has to be a multiple of num_heads {spec.num_heads}")
        if not 1 <= per_token <= routed:
            raise UsageError(f"experts_per_token has to be from 1 to num_experts {routed}, not {per_token}")
        if rotary < 2 or rotary % 2:
            raise UsageError(f"rotary_width has to be even, not {rotary}: channels are rotated in pairs")

        def block(layer: int) -> Block:
            attention = LatentAttention(spec)
            experts = layer >= dense and Experts(d, width=width, routed=routed, per_token=per_token, shared=shared)
            return Block(d, nn.RMSNorm, attention, experts or GatedMlp(d, 4 * d))

        self.tokens = nn.Embedding(spec.vocab_size, d)
        self.blocks = nn.ModuleList(map(block, range(spec.num_layers)))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, spec.vocab_size, bias=False)
        self.rotary_width = rotary
        self.checkpointing = _checked(spec, "checkpointing", _POLICIES)
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
        x = _through(self.blocks, self.tokens(tokens), angles, policy=self.checkpointing)
        return self.head(self.norm(x))


def _expert_sizes(spec: WorkloadSpec) -> tuple[int, int, int, int]:
    given = {"num_experts": 8, "experts_per_token": 2, "shared_experts": 1, "expert_width": spec.d_model}
    routed, per_token, shared, width = (spec.option(name, default) for name, default in given.items())
    return routed, per_token, shared, width


def deepseek_flops(spec: WorkloadSpec) -> int:
    """Return FLOPs of forward and backward.

    3 x forward; per token 2 x weights it meets, and in attention 2 S per head and channel of keys and of values.
    """
    d, heads = spec.d_model, spec.num_heads
    plain, rotary, q_rank, kv_rank = _latent_sizes(spec)
    routed, per_token, shared, width = _expert_sizes(spec)
    queries = d * q_rank + q_rank * heads * (plain + rotary)
    keys_values = d * (kv_rank + rotary) + kv_rank * heads * 2 * plain
    attention = 2 * (queries + keys_values + heads * plain * d) + 2 * spec.seq_len * heads * (2 * plain + rotary)
    experts = 2 * (d * routed + 3 * d * width * (per_token + shared))
    dense_layers = min(spec.option("dense_layers", 1), spec.num_layers)
    layers = spec.num_layers * attention + dense_layers * 2 * 12 * d * d + (spec.num_layers - dense_layers) * experts
    return 3 * spec.batch_size * spec.seq_len * (layers + 2 * spec.vocab_size * d)
