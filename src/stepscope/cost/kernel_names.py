"""What a device kernel's name tells: its family, whether it runs on tensor (matrix) cores, and in which type.

Names are all that CUDA graphs and many libraries leave. The rules follow the naming schemes of ATen, Triton, cuBLAS,
cuDNN, CUTLASS, FlashAttention, Tensile, Composable Kernel, MIOpen and FBGEMM. A name that no rule knows is OTHER.
"""

import re
from enum import Enum
from functools import lru_cache

from stepscope.dataclass import dataclass

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

    @property
    def hardware_flops(self) -> int:
        """Return model FLOPs and what the algorithm repeats, as PyTorch's own counter does."""
        return self.flops + self.recomputed_flops


# Does a name match one of many regular expressions, nearly all of which are of other names?
#
# To look for a text in a name takes a tenth of a search with an expression and a thousandth of compiling it. So each
# is
# compiled and asked only where the name holds its longest plain part, which is in all that it matches:
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
    """Return fragments, regular expressions in any letter case, as they are looked for: the quickest first."""
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


# Whether the name of a matrix-product kernel says that it runs on tensor (matrix) cores, and in which type.
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
    return next((kind for kind, rule in _TYPES if holds(text, rule)), None)


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
    ("fp16", any_of("fp16", "f16", "half", "hgemm", r"h(884|1688|16816)gemm")),
    ("fp64", any_of("dgemm", "d884gemm", "f64", "double")),
    ("fp32", any_of("sgemm", "scudnn", "f32", "fp32", r"\bfloat\b")),
)


# Characters that are looked at; template names can be longer but say everything earlier.
_MAX_NAME_LENGTH = 4000


@dataclass(frozen=True)
class KernelClass:
    """What a kernel's name tells."""

    family: Family
    #: None: a matrix product whose name does not say
    tensor_core: bool | None
    #: operand type of a matrix product; None where the name does not say, and in other families
    dtype: str | None


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
