"""Work of convolutions, forward and backward.

Each output point and channel takes Cin / groups x kernel multiply-adds; a transposed convolution counts its input
points instead. The gradients of the input and of the weight each take the same number again.

The output's size follows from stride, padding and dilation, which the profiler records as values beside the shapes
("Concrete Inputs", torch 2.1 and later). Without them forward is unknown; backward has the output's gradient.
"""

import math
from collections.abc import Callable

from stepscope.contract.flops import (
    BACKWARD_TRANSPOSED,
    BACKWARD_WANTED,
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    NESTED_CONVOLUTIONS,
    ConvolutionArguments,
    convolution_flops,
    convolution_output,
)
from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.recorded_inputs import Call, Shape


def _forward(at: ConvolutionArguments) -> Callable[[Call], OpCost | None]:
    def cost(call: Call) -> OpCost | None:
        data, weight = call.tensor(0), call.tensor(1)
        if data is None or weight is None or len(data.shape) != len(weight.shape) or len(data.shape) < 3:
            return None
        output = _output_shape(call, data.shape, weight.shape, at)
        if output is None:
            return None
        points = data.shape if _is_transposed(call, at) else output
        return OpCost(
            Family.CONVOLUTION,
            flops=convolution_flops(points, weight.shape),
            read_bytes=data.size_bytes + weight.size_bytes,
            write_bytes=math.prod(output) * data.element_bytes,
            dtype=data.dtype,
        )

    return cost


def _backward(call: Call) -> OpCost | None:
    """Return the cost of `convolution_backward(grad_output, input, weight, ..., transposed [7], ..., mask [10])`.

    Where the mask is not recorded both gradients are taken to be wanted: only a first layer's input needs none.
    """
    gradient, data, weight = (call.tensor(i) for i in range(3))
    if gradient is None or data is None or weight is None:
        return None
    transposed = (call.flags(BACKWARD_TRANSPOSED) or (False,))[0]
    input_wanted, weight_wanted = (call.flags(BACKWARD_WANTED) or (True, True))[:2]
    once = convolution_flops(data.shape if transposed else gradient.shape, weight.shape)
    return OpCost(
        Family.CONVOLUTION,
        flops=once * (input_wanted + weight_wanted),
        read_bytes=gradient.size_bytes + data.size_bytes * weight_wanted + weight.size_bytes * input_wanted,
        write_bytes=data.size_bytes * input_wanted + weight.size_bytes * weight_wanted,
        dtype=data.dtype,
    )


def _is_transposed(call: Call, at: ConvolutionArguments) -> bool:
    return at.transposed is not None and (call.flags(at.transposed) or (False,))[0]


def _output_shape(call: Call, data: Shape, weight: Shape, at: ConvolutionArguments) -> Shape | None:
    dims = len(data) - 2
    stride, padding, dilation = (_per_dim(call, i, dims) for i in (at.stride, at.padding, at.dilation))
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    if not _is_transposed(call, at):
        return tuple(convolution_output(data, weight, stride=stride, padding=padding, dilation=dilation))
    kernel = [d * (k - 1) + 1 for d, k in zip(dilation, weight[2:], strict=True)]
    extra = _per_dim(call, at.output_padding, dims) if at.output_padding is not None else None
    groups = call.integers(at.groups) if at.groups is not None else None
    if extra is None or groups is None:
        return None
    points = [(data[2 + i] - 1) * stride[i] - 2 * padding[i] + kernel[i] + extra[i] for i in range(dims)]
    return (data[0], weight[1] * groups[0], *points)


def _per_dim(call: Call, index: int, dims: int) -> Shape | None:
    """Return one value per dimension; a single recorded value holds for all."""
    values = call.integers(index)
    if values is None or len(values) not in (1, dims):
        return None
    return values * dims if len(values) == 1 else values


COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    **{name: _forward(at) for name, at in {**CONVOLUTIONS, **NESTED_CONVOLUTIONS}.items()},
    CONVOLUTION_BACKWARD: _backward,
}
