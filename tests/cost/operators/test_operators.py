"""Costs of operators: by hand, and FLOPs equal to PyTorch's own counter on a profiled run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from stepscope.cost.operators import Family, operator_cost

RECORDED = json.loads(gzip.decompress((Path(__file__).parents[2] / "data/cost/recorded_steps.json.gz").read_bytes()))

BF16, FLOAT, LONG, SCALAR = "c10::BFloat16", "float", "long int", "Scalar"


def cost(name, *inputs, concrete=None, **known):
    """Return the cost for inputs given as (shape, type); None is an input that is no tensor."""
    dims = json.dumps([[] if one is None else one[0] for one in inputs])
    types = json.dumps(["" if one is None else one[1] for one in inputs])
    return operator_cost(name, dims=dims, types=types, concrete=json.dumps(concrete), **known)


def work(found):
    return (found.family, found.flops, found.read_bytes, found.write_bytes)


def test_eight_bit_product_writes_sixteen_bits_unless_its_output_type_is_recorded():
    fp8 = "c10::Float8_e4m3fn"
    inputs: Any = (([16, 32], fp8), ([32, 8], fp8), ([], FLOAT), ([], FLOAT), None, None, None)
    assert work(cost("aten::_scaled_mm", *inputs)) == (Family.GEMM, 8192, 768, 256)
    recorded = ["", "", "", "", "", "", "6"]
    assert cost("aten::_scaled_mm", *inputs, concrete=recorded).write_bytes == 512
    assert cost("aten::_scaled_mm", *inputs).dtype == "fp8"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("aten::_scaled_dot_product_flash_attention", [2, 4, 16, 8]),
        ("aten::_scaled_dot_product_efficient_attention", [2, 4, 16, 8]),
        ("aten::_cudnn_attention_forward", [2, 4, 16, 8]),
        ("aten::_flash_attention_forward", [2, 16, 4, 8]),
        ("aten::_efficient_attention_forward", [2, 16, 4, 8]),
        ("flash_attn::_flash_attn_forward", [2, 16, 4, 8]),
    ],
)
def test_attention_forward_counts_all_pairs_in_either_layout(name, shape):
    found = cost(name, *[(shape, BF16)] * 3)
    assert work(found) == (Family.ATTENTION, 2 * 2 * 4 * 16 * 16 * (8 + 8), 3 * 2048, 2048)


def test_packed_sequences_give_a_lower_bound():
    tokens, offsets = ([64, 4, 8], BF16), ([5], "int")
    found = cost("aten::_flash_attention_forward", tokens, tokens, tokens, offsets, offsets)
    assert found.lower_bound
    assert found.flops == 4 * (2 * 4 * 16 * 16 * 16)  # four sequences of 16
    assert cost("aten::_flash_attention_forward", tokens, tokens, tokens) is None


def test_traffic_of_operators_without_products():
    x = ([4, 8], BF16)
    assert work(cost("aten::gelu", x, None)) == (Family.ELEMENTWISE, 0, 64, 64)
    assert work(cost("aten::add", ([4, 8], FLOAT), ([8], BF16), None)) == (Family.ELEMENTWISE, 0, 144, 128)
    assert work(cost("aten::mul", ([4, 8], FLOAT), ([], "double"), ([4, 8], FLOAT))) == (
        Family.ELEMENTWISE,
        0,
        136,
        128,
    )
    assert work(cost("aten::eq", ([4, 8], FLOAT), ([4, 8], FLOAT))) == (Family.ELEMENTWISE, 0, 256, 32)
    assert work(cost("aten::copy_", ([4, 8], BF16), ([4, 8], FLOAT), None)) == (Family.COPY, 0, 128, 64)
    assert work(cost("aten::fill_", x, None)) == (Family.COPY, 0, 0, 64)
    assert work(cost("aten::sum", x, None)) == (Family.REDUCTION, 0, 64, 0)
    norm = cost("aten::native_layer_norm", ([4, 8], FLOAT), None, ([8], FLOAT), ([8], FLOAT), None)
    assert work(norm) == (Family.NORMALISATION, 0, 192, 128)
    assert work(cost("aten::embedding", ([100, 8], FLOAT), ([2, 3], LONG), None)) == (
        Family.EMBEDDING,
        0,
        6 * 32 + 48,
        6 * 32,
    )


@pytest.mark.parametrize("dims", [None, "", "null", "{}", "[[8, 4]", "[[8, -4], [4, 2]]", "[[8, 4]]", '[["a"], [1]]'])
def test_bad_texts_are_unknown(dims):
    assert operator_cost("aten::mm", dims=dims, types='["float", "float"]') is None


@pytest.mark.parametrize("case", sorted(RECORDED))
def test_recorded_training_step_has_exactly_the_models_flops(case):
    """One step of a GPT as recorded on an H200; the truth is L (24 H^2 + 4 S H) + 2 V H per token, three times."""
    recorded = RECORDED[case]
    model = repeated = 0
    for row in recorded["operators"]:
        found = operator_cost(row["name"], dims=row["dims"], types=row["types"], concrete=row["concrete"])
        flops = found.flops * row["count"] if found else 0
        repeated += flops * row["recomputed"]
        model += flops * (not row["recomputed"])
    assert model == recorded["model_flops_per_step"]
    assert (repeated > 0) == recorded["config"]["checkpoint"]
    if repeated:
        assert repeated / model == pytest.approx(0.28, abs=0.005)  # every block again, but not the output head


def _sdpa(query, key, value, *args, out_shape=None, **kwargs):
    return flop_counter.sdpa_flop_count(query, key, value)


def _sdpa_backward(gradient, query, key, value, *args, out_shape=None, **kwargs):
    return flop_counter.sdpa_backward_flop_count(gradient, query, key, value)


_CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _sdpa,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _sdpa_backward,
}
"""PyTorch registers no formula for its CPU attention kernel: give it the one it uses for the others."""


class Block(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        query, key, value = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def _gpt_block():
    block, x = Block(), torch.randn(2, 16, 32)
    return lambda: block(x).sum().backward()


def _unfused_attention():
    block, x = Block(), torch.randn(2, 16, 32)

    def step():
        with sdpa_kernel(SDPBackend.MATH):
            block(x).sum().backward()

    return step


def _conv_net():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, dilation=2, bias=False), nn.ConvTranspose2d(12, 6, 3, stride=2, output_padding=1),
        nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip
    x = torch.randn(2, 3, 20, 20)
    net(x)
    return lambda: net(x).sum().backward()


def _matrix_products():
    a, b = torch.randn(3, 8, 4), torch.randn(3, 4, 5)
    bias = torch.randn(3, 8, 5)

    def step():
        torch.bmm(a, b)
        torch.baddbmm(bias, a, b)
        torch.einsum("bij,bjk->bik", a, b)
        a[0] @ b[0]
        torch.addmm(bias[0], a[0], b[0])

    return step


@pytest.mark.parametrize("build", [_gpt_block, _unfused_attention, _conv_net, _matrix_products])
def test_flops_equal_pytorchs_counter(build, profiled_costs):
    torch.manual_seed(0)
    step = build()
    with FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as counter:
        step()
    assert counter.get_total_flops() > 0
    assert sum(cost.flops + cost.recomputed_flops for cost in profiled_costs(step)) == counter.get_total_flops()


def test_model_flops_leave_out_what_fused_attention_repeats(profiled_costs):
    fused, unfused = profiled_costs(_gpt_block()), profiled_costs(_unfused_attention())
    assert sum(cost.flops for cost in fused) == sum(cost.flops for cost in unfused)
    assert sum(cost.recomputed_flops for cost in fused) == 2 * 2 * 4 * 16 * 16 * 8
    assert {cost.family for cost in fused} > {Family.ATTENTION, Family.GEMM, Family.NORMALISATION, Family.ELEMENTWISE}
