"""Work of convolutions, forward and backward.

Each output point and channel takes Cin / groups x kernel multiply-adds; a transposed convolution counts its input
points instead. The gradients of the input and of the weight each take the same number again.

The output's size follows from stride, padding and dilation, which the profiler records as values beside the shapes
("Concrete Inputs", torch 2.1 and later). Without them forward is unknown; backward has the output's gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.recorded_inputs import Call, Shape, Tensor


@dataclass(frozen=True)
class _Positions:
    """Which arguments of a forward operator hold what."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None = None
    output_padding: int | None = None
    groups: int | None = None


def _forward(at: _Positions) -> Callable[[Call], OpCost | None]:
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
            flops=_flops(points, weight),
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
    transposed = (call.flags(7) or (False,))[0]
    input_wanted, weight_wanted = (call.flags(10) or (True, True))[:2]
    return OpCost(
        Family.CONVOLUTION,
        flops=_flops(data.shape if transposed else gradient.shape, weight) * (input_wanted + weight_wanted),
        read_bytes=gradient.size_bytes + data.size_bytes * weight_wanted + weight.size_bytes * input_wanted,
        write_bytes=data.size_bytes * input_wanted + weight.size_bytes * weight_wanted,
        dtype=data.dtype,
    )


def _flops(points: Shape, weight: Tensor) -> int:
    """Return 2 x batch x points x the weight's elements, which are Cout x Cin / groups x kernel."""
    return 2 * points[0] * math.prod(points[2:]) * weight.elements


def _is_transposed(call: Call, at: _Positions) -> bool:
    return at.transposed is not None and (call.flags(at.transposed) or (False,))[0]


def _output_shape(call: Call, data: Shape, weight: Shape, at: _Positions) -> Shape | None:
    dims = len(data) - 2
    stride, padding, dilation = (_per_dim(call, i, dims) for i in (at.stride, at.padding, at.dilation))
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    kernel = [d * (k - 1) + 1 for d, k in zip(dilation, weight[2:], strict=True)]
    if not _is_transposed(call, at):
        points = [(data[2 + i] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in range(dims)]
        return (data[0], weight[0], *points)
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


_PLAIN = _Positions(stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8)
_VENDOR = _Positions(stride=4, padding=3, dilation=5)

COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    "aten::convolution": _forward(_PLAIN),
    "aten::_convolution": _forward(_PLAIN),
    "aten::convolution_overrideable": _forward(_PLAIN),
    "aten::mkldnn_convolution": _forward(_VENDOR),
    "aten::miopen_convolution": _forward(_VENDOR),
    "aten::cudnn_convolution": _forward(_Positions(stride=3, padding=2, dilation=4)),
    "aten::convolution_backward": _backward,
}
