"""Routed and shared experts; load is balanced by a bias on the choice of experts, not by a term of the loss.

Each token goes to the experts of its `per_token` highest (sigmoid score + bias); their outputs are weighted by the
scores alone, so the bias moves load without touching gradients. After each step, experts with more than their share
of tokens get a slightly lower bias, the others a higher one (Wang et al. 2024, as in DeepSeek-V3).
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class GatedMlp(nn.Module):  # type: ignore[misc]
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, width, bias=False)
        self.up = nn.Linear(d_model, width, bias=False)
        self.down = nn.Linear(width, d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x through the MLP."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):  # type: ignore[misc]
    """`shared` experts that see every token and `routed` ones of which each token sees `per_token`."""

    def __init__(self, d_model: int, *, width: int, routed: int, per_token: int, shared: int) -> None:
        super().__init__()
        self.per_token = per_token
        self.router = nn.Linear(d_model, routed, bias=False)
        self.experts = nn.ModuleList(GatedMlp(d_model, width) for _ in range(routed))
        self.shared = GatedMlp(d_model, shared * width) if shared else None
        self.register_buffer("bias", torch.zeros(routed))
        self.register_buffer("load", torch.zeros(routed), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of each token's experts."""
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
def rebalance(layers: Iterable[Experts], *, rate: float) -> None:
    """Move each layer's bias by `rate` against the load since the last call, counted over all ranks."""
    layers = list(layers)
    loads = torch.stack([layer.load for layer in layers])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(loads)
    for layer, load in zip(layers, loads, strict=True):
        layer.bias += rate * torch.sign(load.mean() - load)
        layer.load.zero_()


def imbalance(load: torch.Tensor) -> float:
    """Return by how much the fullest expert exceeds an even share: 0 when even."""
    return float(load.max() / load.mean()) - 1.0
