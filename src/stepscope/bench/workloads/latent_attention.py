"""Multi-head latent attention: queries, keys and values come from low-rank latents, positions from a separate part.

    x -> q_down -> norm -> q_up  -> heads x (plain | rotary)          queries
    x -> kv_down -> norm -> kv_up -> heads x (plain keys | values)    keys and values from one latent
    x -> kv_down -> one rotary key, shared by all heads               the only part that knows positions

In generation only the latent and the rotary key have to be kept; in training it saves nothing but is what is trained.
"""

import torch
from torch import nn

from stepscope.bench.workloads.attention import attend, checked_kernel
from stepscope.bench.workloads.workload import WorkloadSpec


class LatentAttention(nn.Module):  # type: ignore[misc]
    """Causal latent attention with decoupled rotary positions."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.heads, self.kernel = spec.num_heads, checked_kernel(spec.option("attention", "sdpa"))
        self.plain, self.rotary, self.q_rank, self.kv_rank = latent_sizes(spec)
        self.q_down = nn.Linear(spec.d_model, self.q_rank, bias=False)
        self.q_norm = nn.RMSNorm(self.q_rank)
        self.q_up = nn.Linear(self.q_rank, self.heads * (self.plain + self.rotary), bias=False)
        self.kv_down = nn.Linear(spec.d_model, self.kv_rank + self.rotary, bias=False)
        self.kv_norm = nn.RMSNorm(self.kv_rank)
        self.kv_up = nn.Linear(self.kv_rank, self.heads * 2 * self.plain, bias=False)
        self.out = nn.Linear(self.heads * self.plain, spec.d_model, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Return x mixed over the sequence."""
        q = _heads(self.q_up(self.q_norm(self.q_down(x))), self.heads)
        q_plain, q_rotary = q.split([self.plain, self.rotary], dim=-1)
        latent, k_rotary = self.kv_down(x).split([self.kv_rank, self.rotary], dim=-1)
        k_plain, v = _heads(self.kv_up(self.kv_norm(latent)), self.heads).chunk(2, dim=-1)
        shared = rotated(k_rotary.unsqueeze(1), angles).expand(-1, self.heads, -1, -1)
        q = torch.cat([q_plain, rotated(q_rotary, angles)], dim=-1)
        k = torch.cat([k_plain, shared], dim=-1)
        return self.out(attend(q, k, v, kernel=self.kernel).transpose(1, 2).flatten(2))


def latent_sizes(spec: WorkloadSpec) -> tuple[int, int, int, int]:
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
