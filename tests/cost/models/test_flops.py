"""FLOPs per token from a model's shape, against PyTorch's counter on small models of that shape."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stepscope.cost.model_flops import (
    Experts,
    LatentAttention,
    Recompute,
    Transformer,
    forward_flops_per_token,
    training_flops_per_token,
)
from stepscope.cost.model_shape import transformer_from_config
from stepscope.errors import StepscopeError

SEQ, BATCH = 16, 2


class Model(nn.Module):
    """A transformer of any of the described shapes, as small as it can be written."""

    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocab, shape.d_model)
        attention = Latent if shape.latent else Grouped
        self.attention = nn.ModuleList(attention(shape) for _ in range(shape.layers))
        self.mlp = nn.ModuleList(_mlp(shape, layer) for layer in range(shape.layers))
        self.head = nn.Linear(shape.d_model, shape.vocab, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return self.head(x)


def _linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def _heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Grouped(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads or shape.heads
        width = shape.head_width or shape.d_model // shape.heads
        self.query = _linear(shape.d_model, self.heads * width)
        self.key, self.value = (_linear(shape.d_model, self.kv_heads * width) for _ in range(2))
        self.out = _linear(self.heads * width, shape.d_model)

    def forward(self, x):
        query, key, value = (
            _heads(self.query(x), self.heads),
            *(_heads(p(x), self.kv_heads) for p in (self.key, self.value)),
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Latent(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.latent = shape.heads, shape.latent
        width = self.latent.nope_width + self.latent.rope_width
        rank = self.latent.query_rank
        self.query = (
            _linear(shape.d_model, self.heads * width)
            if rank is None
            else nn.Sequential(_linear(shape.d_model, rank), _linear(rank, self.heads * width))
        )
        self.down = _linear(shape.d_model, self.latent.kv_rank + self.latent.rope_width)
        self.up = _linear(self.latent.kv_rank, self.heads * (self.latent.nope_width + self.latent.value_width))
        self.out = _linear(self.heads * self.latent.value_width, shape.d_model)

    def forward(self, x):
        compressed, rope = self.down(x).split((self.latent.kv_rank, self.latent.rope_width), dim=-1)
        expanded = _heads(self.up(compressed), self.heads)
        nope, value = expanded.split((self.latent.nope_width, self.latent.value_width), dim=-1)
        key = torch.cat((nope, rope.unsqueeze(1).expand(-1, self.heads, -1, -1)), dim=-1)
        mixed = F.scaled_dot_product_attention(_heads(self.query(x), self.heads), key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, d_model, width, gated):
        super().__init__()
        self.up, self.down = _linear(d_model, width), _linear(width, d_model)
        self.gate = _linear(d_model, width) if gated else None

    def forward(self, x):
        up = self.up(x)
        return self.down(F.silu(self.gate(x)) * up if self.gate is not None else F.gelu(up))


class Moe(nn.Module):
    def __init__(self, d_model, experts, gated):
        super().__init__()
        self.experts = experts
        self.router = _linear(d_model, experts.count)
        self.routed = nn.ModuleList(Mlp(d_model, experts.width, gated) for _ in range(experts.count))
        self.shared = nn.ModuleList(Mlp(d_model, experts.width, gated) for _ in range(experts.shared))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weight, chosen = self.router(tokens).softmax(-1).topk(self.experts.per_token, dim=-1)
        out = sum((expert(tokens) for expert in self.shared), torch.zeros_like(tokens))
        for number, expert in enumerate(self.routed):
            rows, slot = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(tokens[rows]) * weight[rows, slot, None])
        return out.view_as(x)


def _mlp(shape, layer):
    if shape.experts and layer >= shape.experts.dense_layers:
        return Moe(shape.d_model, shape.experts, shape.gated_mlp)
    return Mlp(shape.d_model, shape.mlp_width, shape.gated_mlp)


SHAPES = {
    "gpt": Transformer(layers=2, d_model=32, heads=4, vocab=100, mlp_width=128),
    "grouped, gated": Transformer(
        layers=2, d_model=32, heads=4, kv_heads=2, head_width=16, vocab=100, mlp_width=80, gated_mlp=True
    ),
    "latent": Transformer(
        layers=2, d_model=32, heads=4, vocab=100, mlp_width=64,
        latent=LatentAttention(kv_rank=16, nope_width=8, rope_width=4, value_width=6, query_rank=24),
    ),
    "latent, experts": Transformer(
        layers=3, d_model=32, heads=4, vocab=100, mlp_width=64, gated_mlp=True,
        latent=LatentAttention(kv_rank=16, nope_width=8, rope_width=4, value_width=8),
        experts=Experts(count=6, per_token=2, width=24, shared=1, dense_layers=1),
    ),
    "experts": Transformer(
        layers=2, d_model=32, heads=4, vocab=100, mlp_width=0, experts=Experts(count=4, per_token=1, width=48)
    ),
}  # fmt: skip


def counted_flops_per_token(function):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        function()
    return counter.get_total_flops() / (SEQ * BATCH)


@pytest.mark.parametrize("name", SHAPES)
def test_forward_and_training_flops_equal_the_counter(name):
    torch.manual_seed(0)
    model, tokens = Model(SHAPES[name]), torch.randint(0, 100, (BATCH, SEQ))
    forward = counted_flops_per_token(lambda: model(tokens))
    assert forward_flops_per_token(SHAPES[name], seq_len=SEQ).total == pytest.approx(forward, rel=0.01)
    training = counted_flops_per_token(lambda: model(tokens).sum().backward())
    assert training_flops_per_token(SHAPES[name], seq_len=SEQ).model == pytest.approx(training, rel=0.01)


def test_checkpointed_blocks_equal_the_counter():
    torch.manual_seed(0)
    shape = SHAPES["gpt"]
    model, tokens = Model(shape), torch.randint(0, 100, (BATCH, SEQ))

    def step():
        x = model.embed(tokens)
        for attention, mlp in zip(model.attention, model.mlp, strict=True):
            x = torch.utils.checkpoint.checkpoint(_block, attention, mlp, x, use_reentrant=True)
        model.head(x).sum().backward()

    found = training_flops_per_token(shape, seq_len=SEQ, recompute=Recompute.BLOCKS)
    assert found.hardware == pytest.approx(counted_flops_per_token(step), rel=0.01)


def _block(attention, mlp, x):
    x = x + attention(x)
    return x + mlp(x)


@pytest.mark.parametrize(
    ("field", "value"), [("v_head_dim", "2"), ("n_routed_experts", "x"), ("q_lora_rank", [5]), ("hidden_size", -1)]
)
def test_a_model_whose_sizes_are_no_numbers_is_refused_by_name(tmp_path, field, value):
    honest = json.loads((Path(__file__).parents[2] / "data" / "side_files" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**honest, field: value}))
    with pytest.raises(StepscopeError, match=r"has to be (a whole number|at least)"):
        transformer_from_config(tmp_path / "config.json")
