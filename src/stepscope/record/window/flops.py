"""Floating-point operations of one operator call, from the shapes of its inputs.

A multiply-add counts as two. Attention is counted in full, not halved for causality. Only operators that do the work
themselves are here: `aten::linear` and `aten::matmul` end in one of these and would count twice.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Shapes = Sequence[Sequence[int]]
Inputs = Sequence[Any]


def flops_of(name: str, shapes: Shapes, inputs: Inputs) -> int:
    """Return the FLOPs of one call; 0 for operators that are not matrix products, convolutions or attention."""
    formula = _FORMULAS.get(name)
    if formula is None:
        return 0
    try:
        return formula(shapes, inputs)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return 0  # an overload with other arguments


def _product(first: int) -> Callable[[Shapes, Inputs], int]:
    """Return the formula of a (batched, grouped) matrix product whose left factor is argument `first`."""

    def formula(shapes: Shapes, inputs: Inputs) -> int:
        left, right = shapes[first], shapes[first + 1]
        return 2 * prod(left) * right[-1]

    return formula


def _attention(shapes: Shapes, inputs: Inputs) -> int:
    """q (..., Sq, D), k (..., Sk, D), v (..., Sk, Dv): scores and their product with the values."""
    query, key, value = shapes[:3]
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(shapes: Shapes, inputs: Inputs) -> int:
    """Gradient first: the scores once more, then two products for each of the two in forward."""
    query, key, value = shapes[1:4]
    pairs = prod(query[:-1]) * key[-2]
    return 2 * pairs * (3 * query[-1] + 2 * value[-1])


def _attention_heads_last(first: int) -> Callable[[Shapes, Inputs], int]:
    """Return the formula for (B, S, H, D) layouts, query at argument `first`."""

    def formula(shapes: Shapes, inputs: Inputs) -> int:
        query, key, value = shapes[first : first + 3]
        products = 2 if first == 0 else 5
        return products * prod(query) * key[1] * 2 if query[-1] == value[-1] else 0

    return formula


def _convolution(shapes: Shapes, inputs: Inputs) -> int:
    """input, weight, bias, stride, padding, dilation, transposed, output_padding, groups."""
    source, weight = shapes[0], shapes[1]
    if inputs[6]:  # transposed: every input element meets the whole kernel
        return 2 * prod(source) * prod(weight[1:])
    out = _convolved(source, weight, stride=inputs[3], padding=inputs[4], dilation=inputs[5])
    return 2 * out * prod(weight[1:])


def _convolution_backward(shapes: Shapes, inputs: Inputs) -> int:
    """grad, input, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask."""
    gradient, source, weight = shapes[:3]
    once = 2 * prod(source if inputs[7] else gradient) * prod(weight[1:])
    mask = inputs[10]
    return once * (bool(mask[0]) + bool(mask[1]))


def _convolved(source: Sequence[int], weight: Sequence[int], *, stride: Any, padding: Any, dilation: Any) -> int:
    """Return the number of output elements."""
    dims = len(source) - 2
    sizes = [
        (source[2 + d] + 2 * _at(padding, d) - _at(dilation, d) * (weight[2 + d] - 1) - 1) // _at(stride, d) + 1
        for d in range(dims)
    ]
    return source[0] * weight[0] * prod(sizes)


def _at(values: Any, index: int) -> int:
    return int(values[index] if len(values) > 1 else values[0])


_FORMULAS: dict[str, Callable[[Shapes, Inputs], int]] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
    "aten::addbmm": _product(1),
    "aten::_scaled_mm": _product(0),
    "aten::_grouped_mm": _product(0),
    "aten::_scaled_grouped_mm": _product(0),
    "aten::_int_mm": _product(0),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "flash_attn::_flash_attn_forward": _attention_heads_last(0),
    "flash_attn::_flash_attn_backward": _attention_heads_last(1),
}
