"""Work of matrix products: mm, addmm, bmm, baddbmm, mv, dot, scaled and grouped products.

[m, k] by [k, n] takes 2 m n k FLOPs. Adding a bias or a scaled input is not counted, as in PyTorch's own counter.
"""

from collections.abc import Callable

from stepscope.contract.flops import NESTED_PRODUCTS, PRODUCT_TYPE_AT, PRODUCTS, product_sizes
from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.recorded_inputs import Call, Tensor

_SCALED_OUTPUT_BYTES = 2
"""8-bit products are written in 16 bits unless their recorded output type says otherwise."""


def _product(first: int, *, output_type_at: int | None = None) -> Callable[[Call], OpCost | None]:
    """Return the cost function of an operator whose matrices are the inputs `first` and `first + 1`."""

    def cost(call: Call) -> OpCost | None:
        left, right = call.tensor(first), call.tensor(first + 1)
        if left is None or right is None:
            return None
        size = product_sizes(left.shape, right.shape)
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


def _output_bytes(call: Call, left: Tensor, output_type_at: int | None) -> int:
    if output_type_at is None:
        return left.element_bytes
    return call.scalar_type_bytes(output_type_at) or max(left.element_bytes, _SCALED_OUTPUT_BYTES)


COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    name: _product(first, output_type_at=PRODUCT_TYPE_AT.get(name))
    for name, first in {**PRODUCTS, **NESTED_PRODUCTS}.items()
}
