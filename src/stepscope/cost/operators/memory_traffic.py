"""Bytes of operators that are judged by memory bandwidth: all that are no matrix product.

Three shapes of operator cover them. *Streams* read some inputs and write outputs shaped like inputs. *Elementwise*
operators broadcast theirs. *Lists* (fused and foreach optimizers) do the same for many tensors at once.
"""

from collections.abc import Callable

from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.recorded_inputs import Call, Shape, Tensor
from stepscope.dataclass import dataclass

CostFunction = Callable[[Call], OpCost | None]

_FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class _Stream:
    """Reads the inputs up to `reads` (all where None), writes one output shaped like each input in `writes`."""

    family: Family
    writes: tuple[int, ...]
    reads: int | None = None
    first: int = 0
    mask: bool = False
    """also writes one byte per element of the first input"""
    lower_bound: bool = False

    def __call__(self, call: Call) -> OpCost | None:
        inputs = call.tensors(self.first, self.reads)
        outputs = [call.tensor(i) for i in self.writes]
        if not call.tensors() or (outputs and outputs[0] is None):
            return None
        written = sum(tensor.size_bytes for tensor in outputs if tensor is not None)
        return OpCost(
            self.family,
            flops=0,
            read_bytes=sum(tensor.size_bytes for tensor in inputs),
            write_bytes=written + (call.tensors()[0].elements if self.mask else 0),
            lower_bound=self.lower_bound,
        )


def _elementwise(arity: int, *, gives_bool: bool = False) -> CostFunction:
    """Return the cost function of an operator on `arity` broadcast tensors; later inputs are `out=` arguments."""

    def cost(call: Call) -> OpCost | None:
        inputs = call.tensors(0, arity)
        if not inputs:
            return None
        in_place = call.name.endswith("_")
        shape = inputs[0].shape if in_place else _broadcast([tensor.shape for tensor in inputs])
        if shape is None:
            return None
        size = 1 if gives_bool else (inputs[0].element_bytes if in_place else _promoted_bytes(inputs))
        return OpCost(
            Family.ELEMENTWISE,
            flops=0,
            read_bytes=sum(tensor.size_bytes for tensor in inputs),
            write_bytes=Tensor(shape, "", size).size_bytes,
        )

    return cost


def _broadcast(shapes: list[Shape]) -> Shape | None:
    """Return the shape that all broadcast to, None where they do not."""
    out: list[int] = []
    for i in range(1, max(len(shape) for shape in shapes) + 1):
        sizes = {shape[-i] for shape in shapes if len(shape) >= i} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def _promoted_bytes(inputs: tuple[Tensor, ...]) -> int:
    """Return the result's element size: the widest floating type, else the widest; tensors without dims yield."""
    full = [tensor for tensor in inputs if tensor.shape] or list(inputs)
    floats = [tensor for tensor in full if tensor.dtype in _FLOATS]
    return max(tensor.element_bytes for tensor in floats or full)


def _rows(family: Family, *, data_at: int) -> CostFunction:
    """Return the cost function of a look-up: as many rows of `data_at` read and written as there are indices."""

    def cost(call: Call) -> OpCost | None:
        data, index = call.tensor(data_at), _index(call)
        if data is None or index is None or not data.shape:
            return None
        moved = index.elements * data.size_bytes // max(data.shape[0], 1)
        return OpCost(family, flops=0, read_bytes=moved + index.size_bytes, write_bytes=moved)

    return cost


def _index(call: Call) -> Tensor | None:
    return next((tensor for tensor in call.tensors(1) if tensor.dtype in ("int64", "int32")), None)


def _gather(call: Call) -> OpCost | None:
    data, index = call.tensor(0), call.tensor(2)
    if data is None or index is None:
        return None
    moved = index.elements * data.element_bytes
    return OpCost(Family.EMBEDDING, flops=0, read_bytes=moved + index.size_bytes, write_bytes=moved)


def _embedding_backward(call: Call) -> OpCost | None:
    """Return reading the gradient and writing the table's gradient, of which only the touched rows where unrecorded."""
    gradient, index, rows = call.tensor(0), call.tensor(1), call.integers(2)
    if gradient is None or index is None or not gradient.shape:
        return None
    table_bytes = rows[0] * gradient.shape[-1] * gradient.element_bytes if rows else gradient.size_bytes
    return OpCost(
        Family.EMBEDDING,
        flops=0,
        read_bytes=gradient.size_bytes + index.size_bytes,
        write_bytes=table_bytes,
        lower_bound=rows is None,
    )


def _nll_loss(call: Call) -> OpCost | None:
    """Return reading the targets and one log-probability for each."""
    scores, target = call.tensor(0), call.tensor(1)
    if scores is None or target is None:
        return None
    picked = target.elements * scores.element_bytes
    return OpCost(Family.LOSS, flops=0, read_bytes=target.size_bytes + picked, write_bytes=scores.element_bytes)


@dataclass(frozen=True)
class _Lists:
    """Reads and writes whole lists of tensors; None: every recorded list is read, the first is written."""

    family: Family
    reads: int | None = None
    writes: int = 1

    def __call__(self, call: Call) -> OpCost | None:
        lists = call.lists()
        if not lists or call.list_element_bytes is None:
            return None
        elements = call.list_elements if lists[0].elements is None else lists[0].elements
        if elements is None:
            return None
        size = elements * call.list_element_bytes
        reads = len(lists) if self.reads is None else self.reads
        return OpCost(self.family, flops=0, read_bytes=size * reads, write_bytes=size * self.writes)


def foreach(call: Call) -> OpCost | None:
    """Return the cost of any `_foreach_` operator: every list read, one written."""
    return _Lists(Family.OPTIMIZER)(call)


def _named(names: str, cost: CostFunction) -> dict[str, CostFunction]:
    """Return `cost` under every name; `x_` is the in-place form of `x`."""
    return {f"aten::{name}": cost for name in names.split()}


_UNARY = (
    "abs neg exp expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh relu gelu silu mish cos sin erf clamp "
    "clamp_min clamp_max ceil floor round trunc sign nan_to_num leaky_relu elu hardtanh hardswish hardsigmoid softplus "
    "threshold logit log_sigmoid_forward tril triu bitwise_not glu"
)
_BINARY = (
    "add sub mul div pow maximum minimum remainder fmod rsub atan2 masked_fill bitwise_and bitwise_or bitwise_xor lerp"
)
_BINARY_BACKWARD = (
    "gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward leaky_relu_backward elu_backward "
    "hardtanh_backward hardswish_backward softplus_backward logit_backward native_dropout_backward mish_backward "
    "log_sigmoid_backward glu_backward"
)
_COMPARISONS = "eq ne lt le gt ge logical_and logical_or logical_xor"
_TESTS = "isnan isinf isfinite logical_not"
_TERNARY = "addcmul addcdiv where"
_REDUCTIONS = "sum mean max min amax amin norm linalg_vector_norm all any var std var_mean prod argmax argmin logsumexp"
_FILLS = "fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_"


def _with_in_place(names: str) -> str:
    return names + " " + " ".join(f"{name}_" for name in names.split())


COSTS: dict[str, CostFunction] = {
    **_named(_with_in_place(_UNARY), _elementwise(1)),
    **_named(_with_in_place(_BINARY), _elementwise(2)),
    **_named(_BINARY_BACKWARD, _elementwise(2)),
    **_named(_with_in_place(_TERNARY), _elementwise(3)),
    **_named(_COMPARISONS, _elementwise(2, gives_bool=True)),
    **_named(_TESTS, _elementwise(1, gives_bool=True)),
    **_named("native_dropout _fused_dropout", _Stream(Family.ELEMENTWISE, (0,), reads=1, mask=True)),
    **_named(_REDUCTIONS, _Stream(Family.REDUCTION, (), reads=1, lower_bound=True)),
    **_named("cumsum cumprod _cumsum", _Stream(Family.REDUCTION, (0,), reads=1)),
    **_named(_FILLS, _Stream(Family.COPY, (0,), reads=0)),
    **_named("copy_", _Stream(Family.COPY, (0,), first=1, reads=2)),
    **_named("native_layer_norm native_group_norm _fused_rms_norm", _Stream(Family.NORMALISATION, (0,))),
    **_named("native_layer_norm_backward", _Stream(Family.NORMALISATION, (1, 5, 6))),
    **_named("native_group_norm_backward _fused_rms_norm_backward", _Stream(Family.NORMALISATION, (1, 4))),
    **_named("native_batch_norm cudnn_batch_norm miopen_batch_norm", _Stream(Family.NORMALISATION, (0,))),
    **_named("_batch_norm_with_update batch_norm_elemt", _Stream(Family.NORMALISATION, (0,))),
    **_named("native_batch_norm_backward batch_norm_backward", _Stream(Family.NORMALISATION, (1, 2))),
    **_named("cudnn_batch_norm_backward miopen_batch_norm_backward", _Stream(Family.NORMALISATION, (0, 2))),
    **_named("_softmax", _Stream(Family.NORMALISATION, (0,), reads=1)),
    **_named("_softmax_backward_data", _Stream(Family.NORMALISATION, (0,), reads=2)),
    **_named("_log_softmax", _Stream(Family.LOSS, (0,), reads=1)),
    **_named("_log_softmax_backward_data", _Stream(Family.LOSS, (0,), reads=2)),
    **_named("nll_loss_forward nll_loss2d_forward", _nll_loss),
    **_named("nll_loss_backward nll_loss2d_backward", _Stream(Family.LOSS, (1,), first=2, reads=3)),
    **_named(
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy",
        _Stream(Family.LOSS, (), reads=2, lower_bound=True),
    ),
    **_named("mse_loss_backward smooth_l1_loss_backward", _Stream(Family.LOSS, (1,), reads=3)),
    **_named("huber_loss_backward binary_cross_entropy_backward", _Stream(Family.LOSS, (1,), reads=3)),
    **_named("embedding", _rows(Family.EMBEDDING, data_at=0)),
    **_named("index_select", _rows(Family.EMBEDDING, data_at=0)),
    **_named("gather", _gather),
    **_named("embedding_dense_backward", _embedding_backward),
    **_named("_fused_adam_ _fused_adamw_", _Lists(Family.OPTIMIZER, reads=4, writes=3)),
    **_named("_fused_sgd_ _fused_adagrad_", _Lists(Family.OPTIMIZER, reads=3, writes=2)),
    **_named("_amp_foreach_non_finite_check_and_unscale_", _Lists(Family.OPTIMIZER, reads=1)),
    **_named("_foreach_copy_", _Lists(Family.COPY, reads=1)),
    **_named("_foreach_zero_", _Lists(Family.OPTIMIZER, reads=0)),
    **_named("_foreach_norm", _Lists(Family.OPTIMIZER, reads=1, writes=0)),
    **_named("cat", _Lists(Family.COPY, reads=1)),
}
