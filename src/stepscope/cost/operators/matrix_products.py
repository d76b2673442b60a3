"""Work of matrix products: mm, addmm, bmm, baddbmm, mv, dot, scaled and grouped products.

[m, k] by [k, n] takes 2 m n k FLOPs. Adding a bias or a scaled input is not counted, as in PyTorch's own counter.
"""

from collections.abc import Callable

from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.recorded_inputs import Call, Shape, Tensor

_SCALED_OUTPUT_BYTES = 2
"""8-bit products are written in 16 bits unless their recorded output type says otherwise."""


def _product(first: int, *, output_type_at: int | None = None) -> Callable[[Call], OpCost | None]:
    """Return the cost function of an operator whose matrices are the inputs `first` and `first + 1`."""

    def cost(call: Call) -> OpCost | None:
        left, right = call.tensor(first), call.tensor(first + 1)
        if left is None or right is None:
            return None
        size = _sizes(left.shape, right.shape)
        if size is None:
            return None
        multiply_adds, outputs = size
        addend = call.tensor(0) if first == 1 else None
        return OpCost(
            Family.GEMM,
            flops=2 * multiply_adds,
            read_bytes=left.size_bytes + right.size_bytes + (addend.size_bytes if addend else 0),
            write_bytes=outputs * _output_bytes(call, left, output_type_at),
            dtype=left.dtype,
        )

    return cost


def _sizes(left: Shape, right: Shape) -> tuple[int, int] | None:
    """Return (multiply-adds, output elements), None for shapes that no product has.

    Three dimensions by two, or two by three, are grouped products: the rows (or columns) of the side with two are
    spread over the groups, so each meets one group's matrix only.
    """
    match left, right:
        case ((k,), (k2,)) if k == k2:
            return k, 1
        case ((m, k), (k2,)) if k == k2:
            return m * k, m
        case ((m, k), (k2, n)) if k == k2:
            return m * k * n, m * n
        case ((b, m, k), (b2, k2, n)) if (b, k) == (b2, k2):
            return b * m * k * n, b * m * n
        case ((m, k), (_, k2, n)) if k == k2:
            return m * k * n, m * n
        case ((_, m, k), (k2, n)) if k == k2:
            return m * k * n, m * n
    return None


def _output_bytes(call: Call, left: Tensor, output_type_at: int | None) -> int:
    if output_type_at is None:
        return left.element_bytes
    return call.scalar_type_bytes(output_type_at) or max(left.element_bytes, _SCALED_OUTPUT_BYTES)


COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::mv": _product(0),
    "aten::dot": _product(0),
    "aten::vdot": _product(0),
    "aten::_int_mm": _product(0),
    "aten::addmm": _product(1),
    "aten::addmm_": _product(1),
    "aten::addmv": _product(1),
    "aten::addmv_": _product(1),
    "aten::baddbmm": _product(1),
    "aten::baddbmm_": _product(1),
    "aten::addbmm": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::_scaled_mm": _product(0, output_type_at=6),
    "aten::_grouped_mm": _product(0, output_type_at=4),
    "aten::_scaled_grouped_mm": _product(0, output_type_at=6),
}
