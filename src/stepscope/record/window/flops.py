"""Floating-point operations of one operator call, from the shapes of its inputs.

The formulas are the contract's. Only operators that never run inside another one are counted: `aten::linear` and
`aten::matmul` end in one of these and would count twice. Attention's backward counts the scores that it computes again.
"""

from collections.abc import Sequence
from typing import Any

from stepscope.contract.flops import (
    ATTENTION,
    BACKWARD_TRANSPOSED,
    BACKWARD_WANTED,
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    PRODUCTS,
    AttentionOperator,
    ConvolutionArguments,
    attention_flops,
    attention_recomputed_flops,
    convolution_flops,
    convolution_output,
    product_sizes,
)

Shapes = Sequence[Sequence[int]]
Inputs = Sequence[Any]


def flops_of(name: str, shapes: Shapes, inputs: Inputs) -> int:
    """Return the FLOPs of one call; 0 for operators that are not matrix products, convolutions or attention."""
    try:
        if name in PRODUCTS:
            return _product(shapes[PRODUCTS[name] :])
        if name in ATTENTION:
            return _attention(ATTENTION[name], shapes)
        if name in CONVOLUTIONS:
            return _convolution(CONVOLUTIONS[name], shapes, inputs)
        return _convolution_backward(shapes, inputs) if name == CONVOLUTION_BACKWARD else 0
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return 0  # an overload with other arguments


def _product(shapes: Shapes) -> int:
    found = product_sizes(shapes[0], shapes[1])
    return 2 * found[0] if found else 0


def _attention(operator: AttentionOperator, shapes: Shapes) -> int:
    query, key, value = shapes[operator.backward : operator.backward + 3]
    if not len(query) == len(key) == len(value) == 4:  # packed sequences: their lengths are not among the shapes
        return 0
    pairs = operator.pairs(query, key)
    again = attention_recomputed_flops(pairs, query[3], backward=operator.backward)
    return attention_flops(pairs, query[3], value[3], backward=operator.backward) + again


def _convolution(at: ConvolutionArguments, shapes: Shapes, inputs: Inputs) -> int:
    data, weight = shapes[0], shapes[1]
    if at.transposed is not None and inputs[at.transposed]:
        return convolution_flops(data, weight)
    dims = len(data) - 2
    stride, padding, dilation = (_per_dimension(inputs[i], dims) for i in (at.stride, at.padding, at.dilation))
    output = convolution_output(data, weight, stride=stride, padding=padding, dilation=dilation)
    return convolution_flops(output, weight)


def _convolution_backward(shapes: Shapes, inputs: Inputs) -> int:
    gradient, data, weight = shapes[:3]
    once = convolution_flops(data if inputs[BACKWARD_TRANSPOSED] else gradient, weight)
    wanted = inputs[BACKWARD_WANTED]
    return once * (bool(wanted[0]) + bool(wanted[1]))


def _per_dimension(values: Sequence[int], dims: int) -> Sequence[int]:
    """Return one value per dimension; a single one holds for all."""
    return values if len(values) > 1 else [values[0]] * dims
