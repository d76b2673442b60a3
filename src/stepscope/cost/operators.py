"""FLOPs and bytes of one recorded operator: name, shapes and types in, `OpCost` out.

Costed operators are the ones that do the work. Composites that only call others (`aten::linear`, `aten::matmul`,
`aten::scaled_dot_product_attention`, `aten::einsum`, `aten::to`) have no cost, so summing over all
operators counts each piece of work once, with one exception: some costed operators call another costed one
(`aten::_scaled_dot_product_flash_attention` calls `aten::_flash_attention_forward`, `aten::addmv` may call
`aten::addmv_`, and so on with versions and devices). Keep the outermost of those: `counted_once`.

A trace has thousands of operators and few distinct (name, dims, types): call this once per distinct triple. Recent
results are cached, as ranks share them.
"""

import math
import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepscope.contract.operations import (
    ATTENTION,
    BACKWARD_TRANSPOSED,
    BACKWARD_WANTED,
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    NESTED_ATTENTION,
    NESTED_CONVOLUTIONS,
    NESTED_PRODUCTS,
    PRODUCT_TYPE_AT,
    PRODUCTS,
    AttentionOperator,
    ConvolutionArguments,
    attention_flops,
    attention_recomputed_flops,
    convolution_flops,
    convolution_output,
    product_sizes,
)
from stepscope.records import dataclass
from stepscope.side_file import parsed_json

# Facts from a device kernel's name: its family, whether it runs on tensor (matrix) cores, and in which type.
#
# Names are all that CUDA graphs and many libraries leave. The rules follow the naming schemes of ATen, Triton, cuBLAS,
# cuDNN, CUTLASS, FlashAttention, Tensile, Composable Kernel, MIOpen and FBGEMM. A name that no rule knows is OTHER.

# What an operator or kernel does: its family, and the work one call of an operator takes.


class Family(Enum):
    """Kinds of device work that are judged by the same yardstick."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    #: Fused attention. Unfused attention is GEMM, ELEMENTWISE and NORMALISATION operators.
    ATTENTION = "attention"
    #: Layer, batch, group and RMS norm, and softmax.
    NORMALISATION = "normalisation"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    #: Look-ups by index, gathers, and the scatters of their backward.
    EMBEDDING = "embedding"
    OPTIMIZER = "optimizer"
    #: Copies, casts, concatenations, fills and layout changes.
    COPY = "copy"
    LOSS = "loss"
    OTHER = "other"


# Families whose FLOPs are model FLOPs and whose yardstick is the chip's peak; all others are judged by bytes.
MATMUL_FAMILIES = frozenset({Family.GEMM, Family.CONVOLUTION, Family.ATTENTION})


@dataclass(frozen=True)
class OpCost:
    """The work of one call of an operator.

    Bytes are the least that must move: every input read once, every output written once. A kernel that moves more
    shows as below the memory bandwidth, which is what the comparison is for.
    """

    family: Family
    #: Model FLOPs, 2 per multiply-add of a matrix product; 0 by definition in families that have none.
    flops: int
    read_bytes: int
    write_bytes: int
    #: Element type of a matrix product's operands (`bf16`, `fp8`); None in families that have none.
    dtype: str | None = None
    #: FLOPs that the algorithm repeats: fused attention computes its scores again in backward. Hardware, not model.
    recomputed_flops: int = 0
    #: True where the recorded inputs do not tell everything and the work is at least this.
    lower_bound: bool = False

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


# Does a name match one of many regular expressions, nearly all of which are of other names?
#
# Finding a text in a name takes a tenth of a search with an expression and a thousandth of compiling it. So each is
# compiled and used only where the name holds its longest plain part, which is in all that it matches:
#
#     (Tesla |NVIDIA )?V100-SXM[23]-16GB(-\w+)?     names with `V100-SXM` in them
#     (?<!masked_)fill_                             names with `fill_`
#     MI\x33|A.*                                    any name: there is no plain part where the rest is not understood

# pieces of lower-case names, of which any may be there: a plain part, and an expression where that is not all of it
Fragments = tuple[tuple[str, str | None], ...]

_PLAIN = "[A-Za-z0-9 /_:<,-]"
_GROUP = r"\((?:\?<?[!=:])?(?!\?)[^()]*\)"
# what may be missing, be repeated or differ: a character, a kind of character, a group without another in it
_OPEN = rf"(?:{_PLAIN}|[.$]|\\[bdw]|\[\^?[\w >-]+\]|{_GROUP})[?*+]?"
_PART = re.compile(rf"({_PLAIN}+(?![?*+{{]))|({_OPEN})")


def matches_whole(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name, in any letter case."""
    if name.isascii() and plain_part(pattern).lower() not in name.lower():
        return False
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None


def any_of(*fragments: str) -> Fragments:
    """Return fragments, regular expressions in any letter case, in search order: the quickest first."""
    known = [(plain_part(fragment), fragment) for fragment in map(str.lower, fragments)]
    known.sort(key=lambda one: (one[0] != one[1], not one[0]))
    return tuple((part, None if part == fragment else fragment) for part, fragment in known)


def holds(text: str, fragments: Fragments) -> bool:
    """Return whether a name in lower case holds any of the fragments."""
    return any(part in text and (pattern is None or re.search(pattern, text)) for part, pattern in fragments)


@lru_cache(maxsize=1024)
def plain_part(pattern: str) -> str:
    """Return the longest text that is in all that a pattern matches; empty where none is sure to be."""
    parts: list[tuple[str, str]] = _PART.findall(pattern)
    if "".join(map("".join, parts)) != pattern:
        return ""
    return max((plain for plain, _ in parts), key=len, default="")


# Whether the name of a matrix-product kernel shows that it runs on tensor (matrix) cores, and in which type.
#
# | scheme | example | read as |
# |---|---|---|
# | cuBLAS, plain cores | `ampere_sgemm_128x64_nn`, `sm80_xmma_gemm_f32f32_..._ffma` | no; fp32 |
# | cuBLAS, tensor cores | `ampere_bf16_s16816gemm_bf16_...`, `sm90_xmma_gemm_bf16bf16_..._warpgroupsize` | yes; bf16 |
# | cuBLAS since Hopper | `nvjet_sm90_tst_...`: type of operands, sum, result (t bf16, h fp16, q fp8) | yes; bf16 |
# | CUTLASS, plain cores | `cutlass_80_simt_sgemm_...` | no; fp32 |
# | CUTLASS, tensor cores | `cutlass_80_tensorop_s1688gemm_...`: 16 x 8 x 8 in single precision is TF32 | yes; tf32 |
# | Tensile | `Cijk_Ailk_Bljk_BBS_BH_..._MI16x16x16`: MI is a matrix instruction | yes; bf16 |
# | Composable Kernel, MIOpen | `..._xdl_...`, `igemm_fwd_gtcx3_nhwc_bf16_...` | yes; bf16 |
# | cuDNN attention | `..._native_sdpa_sm90_flash_fprop_wgmma_f16_...`: f16 is any 16-bit type | yes; not said |


def _uses_tensor_cores(name: str) -> bool | None:
    text = name.lower()
    if holds(text, _TENSOR_CORE_NAMES_PLAIN):
        return False
    return True if holds(text, _TENSOR) else None


def _operand_type(name: str) -> str | None:
    if _CUDNN_ATTENTION.search(name):
        return None
    nvjet = _NVJET.search(name)
    if nvjet:
        return _NVJET_TYPES.get(nvjet[1])
    tensile = _TENSILE.search(name)
    if tensile:
        return next((kind for prefix, kind in _TENSILE_TYPES if tensile[1].startswith(prefix)), None)
    text = name.lower()
    named = next((kind for kind, rule in _TYPES if holds(text, rule)), None)
    if named is None and (first := _FIRST_TYPE.search(text)):  # operands come before sums and results
        return _FIRST_TYPES.get(first[0])
    return named


_TENSOR_CORE_NAMES_PLAIN = any_of(
    "_ffma",
    "simt",
    r"(?<![a-z])[sd]gemm",
    "gemv",
    "gemmSN_",
    "gemmk1_",
    "dot_kernel",
    "scudnn",
    "depthwise",
    "grouped_direct",
    "naive_conv",
    "fft2d",
    "AsmConv",
    "winograd",
    r"fmha_cutlass[FB]_f32_\w+_sm(50|70|75)",  # tensor cores take single precision since Ampere
    r"fmha_cutlass[FB]_\w+_sm50",
)
_TENSOR = any_of(
    "nvjet",
    "tensorop",
    r"_tensor\d+x\d+x\d+",
    r"[hsdi](884|1688|16816|161616|16832|64x\d+x\d+)(gemm|fprop|dgrad|wgrad|cudnn)",
    "wgmma",
    "gmma",
    "warpgroup",
    "hmma",
    "imma",
    "dmma",
    "wmma",
    "tcgen05",
    "_mma_",
    "mma_sync",
    "sm100f?(_|$)",
    "sm100a",
    "umma",
    "mfma",
    "xdl",
    "gtcx",
    r"_MI\d+x\d+",
    "flash_(fwd|bwd)",
    "FlashAttn(Fwd|Bwd)",
    r"fmha_cutlass[FB]_(f16|bf16)_\w+_sm(70|75|8\d|9\d)",
    r"fmha_cutlass[FB]_f32_\w+_sm(8\d|9\d)",  # three TF32 products for one
    r"fmhaSm\d+",
    "fmha_(v2|fwd|bwd)",
    "Fmha(Fwd|Bwd)",
    "fp8_gemm",
    "deep_gemm",
    "e4m3",
    "e2m1",
    "marlin",
    "ImplicitGemmMultistage",
    "attn_(fwd|bwd)",
    "bwd_kernel_d[qkv]",
)

_CUDNN_ATTENTION = re.compile(r"native_sdpa\w*_f16")
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z])[a-z]+_")
_NVJET_TYPES = {"t": "bf16", "h": "fp16", "q": "fp8", "o": "fp8"}
_TENSILE = re.compile(r"Cijk_\w+?_B[a-z]{3}_([A-Z0-9]+)_")
_TENSILE_TYPES = (("F8", "fp8"), ("B8", "fp8"), ("B", "bf16"), ("H", "fp16"), ("S", "fp32"), ("D", "fp64"))
_TYPES = (
    ("fp8", any_of("e4m3", "e5m2", "e2m1", "fp8", "f8f8", "float_?8")),
    ("tf32", any_of("tf32", r"tensorop_s1688(gemm|fprop|dgrad|wgrad)_(?!f16|bf16)")),
    ("bf16", any_of("bf16", "bfloat16")),
    ("fp16", any_of("fp16", "f16", "float16", "half", "hgemm", r"h(884|1688|16816)gemm")),
    ("fp64", any_of("dgemm", "d884gemm", "f64", "double")),
    ("fp32", any_of("sgemm", "scudnn", "f32", "fp32")),
)
_FIRST_TYPE = re.compile(r"\b(float|unsigned short|(?:un)?signed char|u?int8_t)\b")
# Composable Kernel writes bfloat16 as unsigned short
_FIRST_TYPES = {"float": "fp32", "unsigned short": "bf16"}


# Characters that are searched; template names can be longer, but the relevant parts come first.
_MAX_NAME_LENGTH = 4000


@dataclass(frozen=True)
class KernelClass:
    """Facts from a kernel's name."""

    family: Family
    #: None: a matrix product whose name does not show it
    tensor_core: bool | None
    #: operand type of a matrix product; None where the name does not say, and in other families
    dtype: str | None


NO_NAME = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")


def function_of(name: str) -> str:
    """Return the name of the function alone, without return type, namespaces, brackets and parameters.

    >>> function_of("void at::native::(anonymous namespace)::softmax_warp_forward<float, 11>(float*)")
    'softmax_warp_forward'
    """
    head = re.split(r"[<(]", NO_NAME.sub("anonymous", name), maxsplit=1)[0].strip()
    return head.rsplit(" ", 1)[-1].rsplit("::", 1)[-1]


@lru_cache(maxsize=1024)
def kernel_class(name: str) -> KernelClass:
    """Return family, tensor-core use and operand type of a kernel. Communication kernels are OTHER.

    >>> kernel_class("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn")
    KernelClass(family=<Family.GEMM: 'gemm'>, tensor_core=True, dtype='bf16')
    """
    name = name[:_MAX_NAME_LENGTH]
    text = name.lower()
    family = next(
        (family for family, rule in (_INDUCTOR_RULES if _INDUCTOR.match(text) else _RULES) if holds(text, rule)),
        Family.OTHER,
    )
    if family not in MATMUL_FAMILIES or holds(text, _SERVES_A_PRODUCT):
        return KernelClass(family, tensor_core=False, dtype=None)
    return KernelClass(family, _uses_tensor_cores(name), _operand_type(name))


# Kernels that serve a product without multiplying: sums of partial products, layout changes, row sums.
_SERVES_A_PRODUCT = any_of(
    "split_?k_?reduce",
    "reduce_?split_?k",
    "execute_split_k_kernel",
    "reduce_wgrad",
    "epilogue::impl",
    "scal_kernel",
    "reduce_1Block",
    "im2col",
    "col2im",
    "dot_do_o",
    "convert_d[qkv]",
    "bwd_preprocess",
    "splitkv_combine",
    "transformWeights",
    "computeOffsets",
)

_LOSS = any_of(
    "log_?softmax",
    r"softmax_warp_\w+<[^>]*, \d+, true",  # fifth template argument: of the logarithm
    "nll_loss",
    "cross_entropy",
    "mse_",
    "smooth_l1",
    "huber",
    "bce_",
)
_NORMALISATION = any_of(
    "(layer|rms|batch|group|instance)_?norm",
    "softmax",
    "GammaBeta",
    "RowwiseMoments",
    "ComputeFusedParams",
    "bn_(fw|bw)_",
    "ln_(fwd|bwd)",
)

_INDUCTOR = re.compile(r"triton_(poi|red|per|tem)_fused_")
_MOVES_ONLY = (
    "(_(_to_copy|copy|clone|view|_unsafe_view|t|transpose|permute|cat|stack|split|slice|select|expand|reshape"
    "|unsqueeze|squeeze|constant_pad_nd|fill|zeros|zeros_like|ones|full|empty_like))+"
)
# Kernels that torch.compile writes are named by what they fuse: `poi` is elementwise whatever it is fused from.
_INDUCTOR_RULES = (
    (Family.ATTENTION, any_of(r"_tem_\w*attention")),
    (Family.CONVOLUTION, any_of(r"_tem_\w*conv")),
    (Family.GEMM, any_of("_tem_")),
    (Family.COPY, any_of(rf"^triton_poi_fused{_MOVES_ONLY}_\d+$")),
    (Family.EMBEDDING, any_of(r"_poi_\w*embedding")),
    (Family.ELEMENTWISE, any_of("_poi_")),
    (Family.LOSS, _LOSS),
    (Family.NORMALISATION, _NORMALISATION),
    (Family.REDUCTION, any_of("_red_", "_per_")),
)

# First match wins: narrow names go before the wide ones that contain them.
_RULES = (
    (
        Family.OTHER,  # communication
        any_of("nccl", "rccl", "oneccl", "::ep::", "nvshmem", "multimem", "msccl", "symm_mem"),
    ),
    (Family.LOSS, _LOSS),
    (
        Family.COPY,
        any_of(r"multi_tensor_apply_kernel.*::Copy<"),
    ),
    (
        Family.OPTIMIZER,
        any_of("multi_tensor_apply", "adam(?!ant)", "lamb_", "amp_update_scale", "non_finite", "unscale"),
    ),
    (
        Family.ATTENTION,
        any_of(
            "flash_(fwd|bwd|attn|attention|fprop|bprop)",
            "FlashAttn",
            "fmha",
            "(?<![a-z])mha_",
            "sdpa",
            "attention_?(kernel|backward|forward)",
            "attn_(fwd|bwd)",
            r"bwd_kernel_(d[qkv]|fuse)",
            "bwd_preprocess",
            "paged_?attention",
            "unified_?attention",
            "flex_?attention",
            "PagedKVCache",
            "dot_do_o",
            "convert_d[qkv]_",
        ),
    ),
    (
        Family.CONVOLUTION,
        any_of(
            "implicit_?gemm",
            "conv(?!e)",  # not convert
            "fprop",
            "dgrad",
            "wgrad",
            "winograd",
            "[sh]cudnn",
            "igemm_",
            "im2col",
            "col2im",
            "bwd_weight",
            "fft2d_",
        ),
    ),
    (Family.NORMALISATION, _NORMALISATION),
    (
        Family.EMBEDDING,
        any_of(
            "(?<!rotary_)embedding",
            "index_?(select|func|put|copy|elementwise)",
            "indexing_backward",
            "(?<!all)(?<!all_)gather",
            "(?<!reduce)(?<!reduce_)scatter",
            "compute_grad_weight",
            "krn_partial",
            "partial_segments",
            "find_long_segments",
            "permute_(pooled|2D|indices)",
            "linearize_index",
            "bounds_check_ind",
        ),
    ),
    (
        Family.COPY,
        any_of("fp8_?(row|quant|qparam)", "hfp8", "quantize_with", "fp8_quant_kernel"),
    ),
    (
        Family.GEMM,
        any_of(
            "(?<!fb)gemm",
            "nvjet",
            "Cijk_",
            "gemv",
            "splitKreduce",
            "cublas",
            "reduce_?split_?k",
            "matmul",
            r"(?<![a-z])bmm_",
            "dot_kernel",
            "epilogue::impl",
            "scal_kernel<",
            "reduce_1Block",
            "marlin",
        ),
    ),
    (
        Family.COPY,
        any_of(
            "CatArray",
            "chunk_cat",
            "_copy_",
            "copy_kernel",
            "copy_out",
            "FillFunctor",
            "(?<!masked_)fill_",
            "transpose_",
            "nchwToNhwc",
            "nhwcToNchw",
            "SubTensorOp",
            "reshape_and_cache",
            "recat",
            "memset",
            "memcpy",
        ),
    ),
    (
        Family.OTHER,
        any_of("sort", "(?<![a-z])topk", "unique", r"cub::.*(Scan|Partition|Select|ByKey)", "routing"),
    ),
    (
        Family.REDUCTION,
        any_of("reduce", "kernel_scan", "cumsum", "cumprod", "arg(max|min)", "pool"),
    ),
    (
        Family.ELEMENTWISE,
        any_of("elementwise", "dropout", "philox", "distribution", "act_and_mul", "rotary", "rope", "triu"),
    ),
)


# An operator's inputs as the profiler recorded them: texts in, tensors with shape and element size out.
#
# | recorded                                                     | read as                                      |
# |--------------------------------------------------------------|----------------------------------------------|
# | dims `[[8, 16], [16], []]`, types `["float", "float", "Scalar"]` | tensors (8, 16) and (16) of 4 bytes, nothing |
# | dims `[[], []]`, types `["float", "TensorList"]`             | a tensor of one element, an unrecorded list  |
# | dims `[[[8], [4]]]`, types `["TensorList"]`                  | a list of two shapes; its type is not recorded |
#
# The profiler writes lists of more than 30 tensors as an empty list: their size is then unknown, not zero.

Shape = tuple[int, ...]

# How the profiler writes the type of a list of tensors.

_OPERATORS_TYPES = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "long long": ("int64", 8),
    "unsigned long": ("int64", 8),
    "unsigned long int": ("int64", 8),
    "int": ("int32", 4),
    "unsigned int": ("int32", 4),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "unsigned short": ("int16", 2),
    "unsigned short int": ("int16", 2),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "bool": ("bool", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}
# a tensor of more than a petabyte is no tensor
_MAX_ELEMENTS = 1 << 50
_FP8 = "c10::Float8_"
# Element size by c10::ScalarType, as a recorded `dtype` argument gives it (6 is float, 15 is bfloat16).
_SCALAR_TYPE_BYTES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2, 23: 1, 24: 1, 25: 1, 26: 1}


@dataclass(frozen=True)
class Tensor:
    """One tensor input."""

    shape: Shape
    dtype: str
    element_bytes: int

    @property
    def elements(self) -> int:
        """Return the number of elements; a tensor without dimensions has one."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.element_bytes


@dataclass(frozen=True)
class Call:
    """One recorded call of an operator."""

    name: str
    #: None is anything that is no tensor: a number, a list, an absent optional
    inputs: tuple[Tensor | None, ...]
    #: The values of the inputs that are no tensors, as text; empty where the profiler did not record them.
    concrete: tuple[str, ...] = ()

    def tensor(self, index: int) -> Tensor | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def tensors(self, first: int = 0, last: int | None = None) -> tuple[Tensor, ...]:
        return tuple(value for value in self.inputs[first:last] if value is not None)

    def integers(self, index: int) -> Shape | None:
        """Return the recorded value at `index` as integers: `"[1, 1]"` is (1, 1), `"2"` is (2,)."""
        return _integers(self.concrete[index]) if index < len(self.concrete) else None

    def flags(self, index: int) -> tuple[bool, ...] | None:
        """Return the recorded value at `index` as truth values: `"[True, False]"` is (True, False)."""
        words = self.concrete[index].strip("[]").split(",") if index < len(self.concrete) else []
        known = [word.strip() for word in words]
        return tuple(word == "True" for word in known) if known and set(known) <= {"True", "False"} else None

    def scalar_type_bytes(self, index: int) -> int | None:
        """Return the element size of the dtype argument at `index`, None where unrecorded."""
        code = self.integers(index)
        return _SCALAR_TYPE_BYTES.get(code[0]) if code else None


def _read_call(name: str, dims: str | None, types: str | None, concrete: str | None) -> Call | None:
    shapes, names = _json_list(dims), _json_list(types)
    if shapes is None or names is None or len(shapes) != len(names):
        return None
    inputs = tuple(_input(shape, kind) for shape, kind in zip(shapes, names, strict=True))
    return Call(name, inputs, tuple(value if isinstance(value, str) else "" for value in _json_list(concrete) or ()))


def _input(shape: object, kind: object) -> Tensor | None:
    known = (("fp8", 1) if kind.startswith(_FP8) else _OPERATORS_TYPES.get(kind)) if isinstance(kind, str) else None
    dims = _shape(shape)
    return Tensor(dims, *known) if known is not None and dims is not None else None


def _shape(value: object) -> Shape | None:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        return None
    return tuple(value) if len(value) <= 64 and math.prod(value) <= _MAX_ELEMENTS else None


def _json_list(text: str | None) -> list[object] | None:
    try:
        value = parsed_json(text).value if text else None
    except ValueError:
        return None
    return value if isinstance(value, list) else None


def _integers(text: str) -> Shape | None:
    try:
        values = tuple(int(word) for word in text.strip("[]").split(","))
    except ValueError:
        return None
    return values if all(abs(value) <= _MAX_ELEMENTS for value in values) else None


# Work of fused attention, forward and backward, counted in full (not halved for a causal mask).
#
# Scores are [Sq, D] by [D, Sk], their product with the values [Sq, Sk] by [Sk, Dv]: forward 2 Sq Sk (D + Dv) FLOPs per
# head. Backward needs the gradients of both products, twice that. The kernels also compute the scores again, which is
# hardware work but no model work: `recomputed_flops`. With fewer key than query heads, the query heads count.


# pairs of queries and keys, width, width of values, whether the pairs are a lower bound
_Sizes = tuple[int, int, int, bool]


def _cost_of(operator: AttentionOperator) -> Callable[[Call], OpCost | None]:
    inputs_end = 6 if operator.backward else 3

    def cost(call: Call) -> OpCost | None:
        gradient = call.tensor(0)
        query, key, value = (call.tensor(operator.backward + i) for i in range(3))
        if gradient is None or query is None or key is None or value is None:
            return None
        sizes = _sizes(query.shape, key.shape, value.shape, operator, sequences=_sequences(call, first=inputs_end))
        if sizes is None:
            return None
        pairs, width, value_width, lower_bound = sizes
        inputs_bytes = sum(tensor.size_bytes for tensor in (query, key, value))
        output_bytes = query.size_bytes // max(width, 1) * value_width
        # Backward reads the gradient and the output of forward as well.
        return OpCost(
            Family.ATTENTION,
            flops=attention_flops(pairs, width, value_width, backward=operator.backward),
            recomputed_flops=attention_recomputed_flops(pairs, width, backward=operator.backward),
            read_bytes=inputs_bytes + 2 * gradient.size_bytes if operator.backward else inputs_bytes,
            write_bytes=inputs_bytes if operator.backward else output_bytes,
            dtype=query.dtype,
            lower_bound=lower_bound,
        )

    return cost


def _sizes(query: Shape, key: Shape, value: Shape, operator: AttentionOperator, sequences: int | None) -> _Sizes | None:
    if not len(query) == len(key) == len(value):
        return None
    if len(query) == 3 and sequences:
        # One after the other. Their lengths are not recorded; equal ones give the fewest pairs: the sum of squares is
        # least.
        return query[1] * query[0] * key[0] // sequences, query[2], value[2], True
    if len(query) != 4:
        return None
    pairs = operator.pairs(query, key)
    packed = sequences is not None and sequences > 1 and query[0] == 1
    if packed:
        pairs //= sequences or 1
    return pairs, query[3], value[3], packed


def _sequences(call: Call, *, first: int) -> int | None:
    """Return how many packed sequences there are: the cumulative lengths have one entry more.

    They are the first integer tensor with one dimension at or after input `first`.
    """
    for tensor in call.tensors(first):
        if tensor.dtype in ("int32", "int64") and len(tensor.shape) == 1 and tensor.shape[0] > 1:
            return tensor.shape[0] - 1
    return None


COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    name: _cost_of(operator) for name, operator in {**ATTENTION, **NESTED_ATTENTION}.items()
}


# Work of convolutions, forward and backward.
#
# Each output point and channel takes Cin / groups x kernel multiply-adds; a transposed convolution counts its input
# points instead. The gradients of the input and of the weight each take the same number again.
#
# The output's size follows from stride, padding and dilation, which the profiler records as values next to the shapes
# ("Concrete Inputs", torch 2.1 and later). Without them forward is unknown; backward has the output's gradient.


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
    values = call.integers(index)
    if values is None or len(values) not in (1, dims):
        return None
    return values * dims if len(values) == 1 else values


_CONVOLUTION_COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    **{name: _forward(at) for name, at in {**CONVOLUTIONS, **NESTED_CONVOLUTIONS}.items()},
    CONVOLUTION_BACKWARD: _backward,
}


# Work of matrix products: mm, addmm, bmm, baddbmm, mv, dot, scaled and grouped products.
#
# [m, k] by [k, n] takes 2 m n k FLOPs. Adding a bias or a scaled input is not counted, as in PyTorch's own counter.

# 8-bit products are written in 16 bits unless their recorded output type says otherwise.
_SCALED_OUTPUT_BYTES = 2


def _product(first: int, *, output_type_at: int | None = None) -> Callable[[Call], OpCost | None]:

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


_MATRIX_PRODUCTS_COSTS: dict[str, Callable[[Call], OpCost | None]] = {
    name: _product(first, output_type_at=PRODUCT_TYPE_AT.get(name))
    for name, first in {**PRODUCTS, **NESTED_PRODUCTS}.items()
}


# Bytes of operators that are judged by memory bandwidth: all that are no matrix product.
#
# *Streams* read some inputs and write outputs shaped like inputs; *elementwise* operators broadcast theirs.

CostFunction = Callable[[Call], OpCost | None]

_FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class _Stream:
    family: Family
    writes: tuple[int, ...]
    reads: int | None = None
    first: int = 0
    #: also writes one byte per element of the first input
    mask: bool = False
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
    out: list[int] = []
    for i in range(1, max(len(shape) for shape in shapes) + 1):
        sizes = {shape[-i] for shape in shapes if len(shape) >= i} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def _promoted_bytes(inputs: tuple[Tensor, ...]) -> int:
    full = [tensor for tensor in inputs if tensor.shape] or list(inputs)
    floats = [tensor for tensor in full if tensor.dtype in _FLOATS]
    return max(tensor.element_bytes for tensor in floats or full)


def _rows(family: Family, *, data_at: int) -> CostFunction:

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
    scores, target = call.tensor(0), call.tensor(1)
    if scores is None or target is None:
        return None
    picked = target.elements * scores.element_bytes
    return OpCost(Family.LOSS, flops=0, read_bytes=target.size_bytes + picked, write_bytes=scores.element_bytes)


def _named(names: str, cost: CostFunction) -> dict[str, CostFunction]:
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


_MEMORY_TRAFFIC_COSTS: dict[str, CostFunction] = {
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
}


_COSTS = {**_MEMORY_TRAFFIC_COSTS, **_MATRIX_PRODUCTS_COSTS, **_CONVOLUTION_COSTS, **COSTS}
_COMPILED = ("triton_poi_", "triton_red_", "triton_per_")


@lru_cache(maxsize=1024)
def operator_cost(name: str, *, dims: str | None, types: str | None, concrete: str | None = None) -> OpCost | None:
    """Return the work of one call, None where the operator does none or its inputs are unknown.

    `dims`, `types` and `concrete` are the JSON texts of `Input Dims`, `Input type` and `Concrete Inputs`. Operators on
    lists of tensors (fused and foreach optimizers) have none: the profiler records no element type of a list.

    >>> cost = operator_cost("aten::mm", dims="[[8, 4], [4, 2]]", types='["float", "float"]')
    >>> (cost.flops, cost.read_bytes, cost.write_bytes, cost.dtype)
    (128, 160, 64, 'fp32')
    """
    cost = _cost_function(name)
    call = _read_call(name, dims, types, concrete) if cost else None
    return None if cost is None or call is None else cost(call)


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


def _cost_function(name: str) -> CostFunction | None:
    return _COSTS.get(name) or (_compiled if name.startswith(_COMPILED) else None)


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
