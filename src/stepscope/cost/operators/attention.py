"""Work of fused attention, forward and backward, counted in full (not halved for a causal mask).

Scores are [Sq, D] by [D, Sk], their product with the values [Sq, Sk] by [Sk, Dv]: forward 2 Sq Sk (D + Dv) FLOPs per
head. Backward needs the gradients of both products, twice that. The kernels also compute the scores again, which is
hardware work but no model work: `recomputed_flops`. With fewer key than query heads, the query heads count.
"""

from collections.abc import Callable

from stepscope.contract.flops import (
    ATTENTION,
    NESTED_ATTENTION,
    AttentionOperator,
    attention_flops,
    attention_recomputed_flops,
)
from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.recorded_inputs import Call, Shape, Tensor
from stepscope.dataclass import dataclass


@dataclass(frozen=True)
class _Sizes:
    """`pairs`: query-key pairs of all heads and sequences together."""

    pairs: int
    width: int
    value_width: int
    lower_bound: bool


def _cost_of(operator: AttentionOperator) -> Callable[[Call], OpCost | None]:
    """Return the cost function of an operator; where its inputs end, packed sequences have their offsets."""
    inputs_end = 6 if operator.backward else 3

    def cost(call: Call) -> OpCost | None:
        gradient = call.tensor(0)
        query, key, value = (call.tensor(operator.backward + i) for i in range(3))
        if gradient is None or query is None or key is None or value is None:
            return None
        sizes = _sizes(query.shape, key.shape, value.shape, operator, sequences=_sequences(call, first=inputs_end))
        if sizes is None:
            return None
        inputs_bytes = sum(tensor.size_bytes for tensor in (query, key, value))
        output_bytes = query.size_bytes // max(sizes.width, 1) * sizes.value_width
        # Backward reads the gradient and the output of forward as well.
        return OpCost(
            Family.ATTENTION,
            flops=attention_flops(sizes.pairs, sizes.width, sizes.value_width, backward=operator.backward),
            recomputed_flops=attention_recomputed_flops(sizes.pairs, sizes.width, backward=operator.backward),
            read_bytes=inputs_bytes + 2 * gradient.size_bytes if operator.backward else inputs_bytes,
            write_bytes=inputs_bytes if operator.backward else output_bytes,
            dtype=query.dtype,
            lower_bound=sizes.lower_bound,
        )

    return cost


def _sizes(query: Shape, key: Shape, value: Shape, operator: AttentionOperator, sequences: int | None) -> _Sizes | None:
    if not len(query) == len(key) == len(value):
        return None
    if len(query) == 3:  # sequences of different lengths, one after the other
        return _packed(query, key, value, sequences)
    if len(query) != 4:
        return None
    pairs = operator.pairs(query, key)
    packed = sequences is not None and sequences > 1 and query[0] == 1
    if packed:
        pairs //= sequences or 1
    return _Sizes(pairs, query[3], value[3], lower_bound=packed)


def _packed(query: Shape, key: Shape, value: Shape, sequences: int | None) -> _Sizes | None:
    """Return sizes for [tokens, heads, width] with the sequences taken as equally long.

    Their lengths are not recorded. Equal lengths give the fewest pairs (the sum of squares is least), so it is a
    lower bound.
    """
    if not sequences:
        return None
    return _Sizes(query[1] * query[0] * key[0] // sequences, query[2], value[2], lower_bound=True)


def _sequences(call: Call, *, first: int) -> int | None:
    """Return how many packed sequences there are: the cumulative lengths have one entry more.

    They are the first integer tensor with one dimension at or after input `first`.
    """
    for tensor in call.tensors(first):
        if _is_offsets(tensor):
            return tensor.shape[0] - 1
    return None


def _is_offsets(tensor: Tensor) -> bool:
    return tensor.dtype in ("int32", "int64") and len(tensor.shape) == 1 and tensor.shape[0] > 1


COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    name: _cost_of(operator) for name, operator in {**ATTENTION, **NESTED_ATTENTION}.items()
}
