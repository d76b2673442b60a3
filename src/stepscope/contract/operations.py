"""Operations of a job: one vocabulary for collectives, and the FLOPs of operators.

NCCL records, c10d operators, gloo spans and kernels name the same collective differently.

The size of a collective is its *full buffer*: what every rank has at the end of an all-gather, what every rank had at
the beginning of a reduce-scatter or an all-to-all. With P ranks and a time t for n bytes,

    algorithm bandwidth = n / t        bus bandwidth = factor x n / t

where the factor is the share of the buffer that has to cross each link, so that the bus bandwidth can be held against
the link whatever the operation and the number of ranks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType

UNKNOWN_OP = "unknown"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, BROADCAST, REDUCE, GATHER, SCATTER = "all_to_all", "broadcast", "reduce", "gather", "scatter"
BARRIER, SEND, RECV, SEND_RECV = "barrier", "send", "recv", "send_recv"
OPS = (
    *(UNKNOWN_OP, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, GATHER, SCATTER, BARRIER),
    *(SEND, RECV, SEND_RECV),
)
OP_CODE = {name: code for code, name in enumerate(OPS)}

# operations that can be calibrated and predicted
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")

# First match wins; the text is lower case without underscores. A barrier may be carried out as an all-reduce.
_PATTERNS = (
    ("barrier", BARRIER),
    ("allreduce", ALL_REDUCE),
    ("reducescatter", REDUCE_SCATTER),
    ("allgather", ALL_GATHER),
    ("alltoall", ALL_TO_ALL),
    ("broadcast", BROADCAST),
    ("sendrecv", SEND_RECV),
    ("gather", GATHER),
    ("scatter", SCATTER),
    ("reduce", REDUCE),
    ("recv", RECV),
    ("send", SEND),
)

# expert-parallel libraries (DeepEP): their kernels carry no record, and their names say what they are for
EXPERT_KERNEL = re.compile(r"deep_?ep::|::ep::|\b(internode|intranode)(_ll)?::", re.IGNORECASE)


# bytes of one element, by torch's names of its types in lower case
_ELEMENT_BYTES = {
    **dict.fromkeys(("c10::complex<double>", "complexdouble"), 16),
    **dict.fromkeys(("double", "long", "long int", "uint64", "complexfloat", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int", "uint32"), 4),
    **dict.fromkeys(("half", "c10::half", "bfloat16", "c10::bfloat16", "short", "uint16"), 2),
    **dict.fromkeys(("byte", "unsigned char", "char", "signed char", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
}


@lru_cache(maxsize=4096)
def op_name(text: str) -> str:
    """Return the collective of a record, operator, annotation or kernel name.

    >>> [op_name(s) for s in ("_allgather_base", "c10d::alltoall_base_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
    ['all_gather', 'all_to_all', 'all_reduce']
    """
    plain = text.lower().replace("_", "")
    if EXPERT_KERNEL.search(text):
        return ALL_TO_ALL if "dispatch" in plain or "combine" in plain else BARRIER if "notify" in plain else UNKNOWN_OP
    return next((op for pattern, op in _PATTERNS if pattern in plain), UNKNOWN_OP)


def is_comm_annotation(name: str) -> bool:
    """Return whether a host range or operator wraps one communication call (`nccl:all_reduce`, `c10d::send`)."""
    return (
        bool(re.match(r"(nccl|gloo|mpi|ucc|c10d|_c10d_functional)::?", name))
        and "wait" not in name
        and "wrap_tensor" not in name
    )


def element_bytes(dtype: str | None) -> int | None:
    """Return the size of one element, None for a type that is not known."""
    return _ELEMENT_BYTES.get(dtype.lower()) if dtype else None


def bus_factor(op: str, ranks: int) -> float:
    """Return the share of the full buffer that every rank sends: bus bandwidth / algorithm bandwidth.

    One rank alone sends nothing of what is shared out or reduced.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("scatter", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 0.75, 1.0)
    """
    if op == ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER) else 1.0


def ring_steps(op: str, ranks: int) -> int:
    """Return the hops that one byte's result waits for: the multiple of the latency.

    >>> ring_steps("all_reduce", 4), ring_steps("all_gather", 4), ring_steps("send_recv", 4)
    (6, 3, 1)
    """
    return {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(op, ranks - 1)


# FLOPs of operators from the shapes of their inputs: which operators, where their inputs stand, and the formulas.
#
# A multiply-add counts as two. Adding a bias is not counted, as in PyTorch's own counter. Attention is counted in full,
# not halved for a causal mask.
#
# The job counts every call it sees, so it takes the operators that never run inside another one of these. The desk
# knows which operator called which: it takes the others too, and keeps the outermost.

Shape = Sequence[int]

# matrix products, with the input index of their left factor; the right one follows it
PRODUCTS: Mapping[str, int] = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::addbmm": 1,
    "aten::_scaled_mm": 0,
    "aten::_grouped_mm": 0,
    "aten::_scaled_grouped_mm": 0,
    "aten::_int_mm": 0,
}

# input index of the output's type in 8-bit and grouped products
PRODUCT_TYPE_AT: Mapping[str, int] = {"aten::_scaled_mm": 6, "aten::_grouped_mm": 4, "aten::_scaled_grouped_mm": 6}

NESTED_PRODUCTS: Mapping[str, int] = {
    "aten::mv": 0,
    "aten::dot": 0,
    "aten::vdot": 0,
    "aten::addmm_": 1,
    "aten::addmv": 1,
    "aten::addmv_": 1,
    "aten::baddbmm_": 1,
    "aten::_addmm_activation": 1,
}


def product_sizes(left: Shape, right: Shape) -> tuple[int, int] | None:
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


@dataclass(frozen=True)
class AttentionOperator:
    """A fused attention: scores [Sq, D] by [D, Sk], then their product with the values [Sk, Dv]."""

    #: batch, heads, sequence, width; otherwise batch, sequence, heads, width
    heads_first: bool
    #: the gradient of the output precedes query, key and value
    backward: bool = False

    def pairs(self, query: Shape, key: Shape) -> int:
        """Return the query-key pairs of all heads; with fewer key than query heads, the query heads count."""
        heads_at, sequence_at = (1, 2) if self.heads_first else (2, 1)
        return query[0] * query[heads_at] * query[sequence_at] * key[sequence_at]


def _both(names: Mapping[str, str], *, heads_first: bool) -> dict[str, AttentionOperator]:
    forward = {name: AttentionOperator(heads_first) for name in names}
    return {**forward, **{name: AttentionOperator(heads_first, backward=True) for name in names.values()}}


def _backward_of(*forward: str) -> dict[str, str]:
    return {name: f"{name.removesuffix('_forward')}_backward" for name in forward}


_SDPA = "aten::_scaled_dot_product"

ATTENTION: Mapping[str, AttentionOperator] = {
    **_both(
        _backward_of(
            f"{_SDPA}_flash_attention",
            f"{_SDPA}_flash_attention_for_cpu",
            f"{_SDPA}_efficient_attention",
            f"{_SDPA}_cudnn_attention",
            f"{_SDPA}_fused_attention_overrideable",
        ),
        heads_first=True,
    ),
    **_both(_backward_of("flash_attn::_flash_attn_forward", "aiter::_flash_attn_forward"), heads_first=False),
}

NESTED_ATTENTION: Mapping[str, AttentionOperator] = {
    **_both(_backward_of("aten::_cudnn_attention_forward"), heads_first=True),
    **_both(
        _backward_of(
            "aten::_flash_attention_forward",
            "aten::_efficient_attention_forward",
            "flash_attn::_flash_attn_varlen_forward",
        ),
        heads_first=False,
    ),
}


def attention_flops(pairs: int, width: int, value_width: int, *, backward: bool = False) -> int:
    """Return the model's FLOPs: two products forward, and the gradients of both, twice that, backward."""
    return 2 * pairs * (width + value_width) * (2 if backward else 1)


def attention_recomputed_flops(pairs: int, width: int, *, backward: bool) -> int:
    """Return what the kernels compute again: backward the scores, which is hardware work but no model work."""
    return 2 * pairs * width if backward else 0


@dataclass(frozen=True)
class ConvolutionArguments:
    """Which arguments of a forward convolution hold what; data and weight are the first two."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None = None
    output_padding: int | None = None
    groups: int | None = None


_PLAIN = ConvolutionArguments(stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8)
_VENDOR = ConvolutionArguments(stride=4, padding=3, dilation=5)

CONVOLUTIONS: Mapping[str, ConvolutionArguments] = {"aten::convolution": _PLAIN}
NESTED_CONVOLUTIONS: Mapping[str, ConvolutionArguments] = {
    "aten::_convolution": _PLAIN,
    "aten::convolution_overrideable": _PLAIN,
    "aten::mkldnn_convolution": _VENDOR,
    "aten::miopen_convolution": _VENDOR,
    "aten::cudnn_convolution": ConvolutionArguments(stride=3, padding=2, dilation=4),
}
# gradient of the output, data, weight, ..., whether it is transposed, ..., which gradients are wanted
CONVOLUTION_BACKWARD = "aten::convolution_backward"
BACKWARD_TRANSPOSED, BACKWARD_WANTED = 7, 10


def convolution_output(data: Shape, weight: Shape, *, stride: Shape, padding: Shape, dilation: Shape) -> Shape:
    """Return the output's shape of a convolution that is not transposed; one value per dimension each."""
    points = [
        (data[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(len(data) - 2)
    ]
    return (data[0], weight[0], *points)


def convolution_flops(points: Shape, weight: Shape) -> int:
    """Return 2 x batch x points x the weight's elements, which are Cout x Cin / groups x kernel.

    `points` is the shape of the output, or of the input where the convolution is transposed. The gradients of the input
    and of the weight each take the same number again.
    """
    return 2 * points[0] * prod(points[2:]) * prod(weight)


# Element types of matrix products by the names that users, configurations and the hardware table share.

# what a benchmark or a training can be run in
TRAINING_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
# what chips have a peak for
PEAK_PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


# The default workload of a benchmark or a training run: about 0.1 s per step on one core.

WORKLOAD_DEFAULTS = MappingProxyType(
    {"d_model": 256, "num_layers": 4, "num_heads": 8, "seq_len": 128, "vocab_size": 1024, "batch_size": 8}
)
DEFAULT_WORKLOAD = "gpt"
