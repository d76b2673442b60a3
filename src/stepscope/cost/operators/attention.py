"""Work of fused attention, forward and backward, counted in full (not halved for a causal mask).

Scores are [Sq, D] by [D, Sk], their product with the values [Sq, Sk] by [Sk, Dv]: forward 2 Sq Sk (D + Dv) FLOPs per
head. Backward needs the gradients of both products, twice that. The kernels also compute the scores again, which is
hardware work but no model work: `recomputed_flops`. With fewer key than query heads, the query heads count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.recorded_inputs import Call, Shape, Tensor


class Layout(Enum):
    """Where the sequence stands in a query of four dimensions."""

    HEADS_FIRST = "batch, heads, sequence, width"
    SEQUENCE_FIRST = "batch, sequence, heads, width"


@dataclass(frozen=True)
class _Sizes:
    """`pairs`: query-key pairs of all heads and sequences together."""

    pairs: int
    width: int
    value_width: int
    lower_bound: bool

    @property
    def forward_flops(self) -> int:
        return 2 * self.pairs * (self.width + self.value_width)

    @property
    def score_flops(self) -> int:
        return 2 * self.pairs * self.width


def _forward(layout: Layout) -> Callable[[Call], OpCost | None]:
    def cost(call: Call) -> OpCost | None:
        query, key, value = (call.tensor(i) for i in range(3))
        if query is None or key is None or value is None:
            return None
        sizes = _sizes(query.shape, key.shape, value.shape, layout, sequences=_sequences(call, first=3))
        if sizes is None:
            return None
        output_bytes = query.size_bytes // max(sizes.width, 1) * sizes.value_width
        return OpCost(
            Family.ATTENTION,
            flops=sizes.forward_flops,
            read_bytes=sum(tensor.size_bytes for tensor in (query, key, value)),
            write_bytes=output_bytes,
            dtype=query.dtype,
            lower_bound=sizes.lower_bound,
        )

    return cost


def _backward(layout: Layout) -> Callable[[Call], OpCost | None]:
    def cost(call: Call) -> OpCost | None:
        gradient, query, key, value = (call.tensor(i) for i in range(4))
        if gradient is None or query is None or key is None or value is None:
            return None
        sizes = _sizes(query.shape, key.shape, value.shape, layout, sequences=_sequences(call, first=6))
        if sizes is None:
            return None
        inputs_bytes = sum(tensor.size_bytes for tensor in (query, key, value))
        return OpCost(
            Family.ATTENTION,
            flops=2 * sizes.forward_flops,
            recomputed_flops=sizes.score_flops,
            read_bytes=inputs_bytes + 2 * gradient.size_bytes,  # the gradient, and the output of forward
            write_bytes=inputs_bytes,
            dtype=query.dtype,
            lower_bound=sizes.lower_bound,
        )

    return cost


def _sizes(query: Shape, key: Shape, value: Shape, layout: Layout, sequences: int | None) -> _Sizes | None:
    if not len(query) == len(key) == len(value):
        return None
    if len(query) == 3:  # sequences of different lengths, one after the other
        return _packed(query, key, value, sequences)
    if len(query) != 4:
        return None
    heads_at, sequence_at = (1, 2) if layout is Layout.HEADS_FIRST else (2, 1)
    pairs = query[0] * query[heads_at] * query[sequence_at] * key[sequence_at]
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


def _both(forward: str, backward: str, layout: Layout) -> dict[str, Callable[[Call], OpCost | None]]:
    return {forward: _forward(layout), backward: _backward(layout)}


_HEADS, _SEQUENCE = Layout.HEADS_FIRST, Layout.SEQUENCE_FIRST
_SDPA = "aten::_scaled_dot_product"

COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    **_both(f"{_SDPA}_flash_attention", f"{_SDPA}_flash_attention_backward", _HEADS),
    **_both(f"{_SDPA}_flash_attention_for_cpu", f"{_SDPA}_flash_attention_for_cpu_backward", _HEADS),
    **_both(f"{_SDPA}_efficient_attention", f"{_SDPA}_efficient_attention_backward", _HEADS),
    **_both(f"{_SDPA}_cudnn_attention", f"{_SDPA}_cudnn_attention_backward", _HEADS),
    **_both(f"{_SDPA}_fused_attention_overrideable", f"{_SDPA}_fused_attention_overrideable_backward", _HEADS),
    **_both("aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward", _HEADS),
    **_both("aten::_flash_attention_forward", "aten::_flash_attention_backward", _SEQUENCE),
    **_both("aten::_efficient_attention_forward", "aten::_efficient_attention_backward", _SEQUENCE),
    **_both("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward", _SEQUENCE),
    **_both("flash_attn::_flash_attn_varlen_forward", "flash_attn::_flash_attn_varlen_backward", _SEQUENCE),
    **_both("aiter::_flash_attn_forward", "aiter::_flash_attn_backward", _SEQUENCE),
}
