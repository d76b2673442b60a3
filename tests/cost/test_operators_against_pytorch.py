"""Operator FLOPs from a profiled run equal PyTorch's own counter on the same run."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from stepscope.cost.kernel_names import Family


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
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, dilation=2, bias=False),
        nn.ConvTranspose2d(12, 6, 3, stride=2, output_padding=1),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
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
    assert sum(cost.hardware_flops for cost in profiled_costs(step)) == counter.get_total_flops()


def test_model_flops_leave_out_what_fused_attention_repeats(profiled_costs):
    fused, unfused = profiled_costs(_gpt_block()), profiled_costs(_unfused_attention())
    assert sum(cost.flops for cost in fused) == sum(cost.flops for cost in unfused)
    assert sum(cost.recomputed_flops for cost in fused) == 2 * 2 * 4 * 16 * 16 * 8
    assert {cost.family for cost in fused} > {Family.ATTENTION, Family.GEMM, Family.NORMALISATION, Family.ELEMENTWISE}


def test_grouped_convolution_counts_only_its_own_channels(profiled_costs):
    convolution, x = nn.Conv2d(8, 8, 3, groups=4, padding=1), torch.randn(2, 8, 10, 10, requires_grad=True)
    costs = [c for c in profiled_costs(lambda: convolution(x).sum().backward()) if c.family is Family.CONVOLUTION]
    forward = 2 * 2 * 10 * 10 * 8 * (8 // 4) * 9
    assert [cost.flops for cost in costs] == [forward, 2 * forward]
