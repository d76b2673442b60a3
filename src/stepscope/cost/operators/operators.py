"""FLOPs and bytes of one recorded operator: name, shapes and types in, `OpCost` out.

Costed operators are the ones that do the work. Composites that only call others (`aten::linear`, `aten::matmul`,
`aten::scaled_dot_product_attention`, `aten::einsum`, `aten::to`) have no cost of their own, so summing over all
operators counts each piece of work once, with one exception: some costed operators call another costed one
(`aten::_scaled_dot_product_flash_attention` calls `aten::_flash_attention_forward`, `aten::addmv` may call
`aten::addmv_`, and so on with versions and devices). Keep the outermost of those: `counted_once`.

A trace has thousands of operators and few distinct (name, dims, types): call this once per distinct triple. Ranks share
them, so what was asked lately is known.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepscope.cost.operators import attention, convolution, matrix_products, memory_traffic
from stepscope.cost.operators.families import OpCost
from stepscope.cost.operators.kernel_names import kernel_class
from stepscope.cost.operators.recorded_inputs import Call, read_call

_COSTS = {**memory_traffic.COSTS, **matrix_products.COSTS, **convolution.COSTS, **attention.COSTS}
_FOREACH = "aten::_foreach_"
_COMPILED = ("triton_poi_", "triton_red_", "triton_per_")

COSTED = frozenset(_COSTS)
"""Operators that have a cost, beside `aten::_foreach_*` and compiled `triton_*` kernels."""


@lru_cache(maxsize=1024)
def operator_cost(
    name: str,
    *,
    dims: str | None,
    types: str | None,
    concrete: str | None = None,
    list_elements: int | None = None,
    list_element_bytes: int | None = None,
) -> OpCost | None:
    """Return the work of one call, None where the operator has none of its own or its inputs do not tell.

    `dims`, `types` and `concrete` are the JSON texts of `Input Dims`, `Input type` and `Concrete Inputs`. Of a list
    of tensors the profiler records no element type, and of a long one no shapes: give `list_element_bytes`, and
    `list_elements` (for an optimizer: the number of parameters), to cost operators on lists.

    >>> cost = operator_cost("aten::mm", dims="[[8, 4], [4, 2]]", types='["float", "float"]')
    >>> (cost.flops, cost.read_bytes, cost.write_bytes, cost.dtype)
    (128, 160, 64, 'fp32')
    """
    cost = _cost_function(name)
    if cost is None:
        return None
    call = read_call(
        name,
        dims=dims,
        types=types,
        concrete=concrete,
        list_elements=list_elements,
        list_element_bytes=list_element_bytes,
    )
    return None if call is None else cost(call)


def may_cost(name: str) -> bool:
    """Return whether there are calls of an operator that have a cost of their own."""
    return _cost_function(name) is not None


def counted_once(costed: npt.NDArray[np.bool_], *, parents: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return which operators to count: those with a cost and without a costed operator around them.

    `parents[i]` is the row of the operator around row i on the same thread, -1 where there is none.
    """
    kept = costed.copy()
    call = np.flatnonzero(costed)
    above = parents.take(call)
    while len(inside := np.flatnonzero(above >= 0)):
        call, above = call.take(inside), above.take(inside)
        covered = costed.take(above)
        kept[call[covered]] = False
        above = np.where(covered, -1, parents.take(above))
    return kept


def _cost_function(name: str) -> memory_traffic.CostFunction | None:
    if name in _COSTS:
        return _COSTS[name]
    if name.startswith(_FOREACH):
        return memory_traffic.foreach
    return _compiled if name.startswith(_COMPILED) else None


def _compiled(call: Call) -> OpCost | None:
    """Return the traffic of a generated kernel: every tensor moved once; which are written is not recorded.

    The last tensor is an output; where there are more outputs they are counted as read, so that the sum holds.
    """
    tensors = call.tensors()
    if not tensors:
        return None
    return OpCost(
        kernel_class(call.name).family,
        flops=0,
        read_bytes=sum(tensor.size_bytes for tensor in tensors[:-1]),
        write_bytes=tensors[-1].size_bytes,
        lower_bound=True,
    )
