"""What a device kernel's name tells: its family, whether it runs on tensor (matrix) cores, and in which type.

Names are all that CUDA graphs and many libraries leave. The rules follow the naming schemes of ATen, Triton, cuBLAS,
cuDNN, CUTLASS, FlashAttention, Tensile, Composable Kernel, MIOpen and FBGEMM. A name that no rule knows is OTHER.
"""

import re
from functools import lru_cache

from stepscope.cost.name_patterns import Fragments, any_of, holds
from stepscope.cost.operators.families import MATMUL_FAMILIES, Family
from stepscope.cost.operators.tensor_core_names import operand_type, uses_tensor_cores
from stepscope.dataclass import dataclass

_MAX_NAME_LENGTH = 4000
"""Characters that are looked at; template names can be longer but say everything earlier."""


@dataclass(frozen=True)
class KernelClass:
    """What a kernel's name tells."""

    family: Family
    tensor_core: bool | None
    """None: a matrix product whose name does not say"""
    dtype: str | None
    """operand type of a matrix product; None where the name does not say, and in other families"""


@lru_cache(maxsize=1024)
def kernel_class(name: str) -> KernelClass:
    """Return family, tensor-core use and operand type of a kernel. Communication kernels are OTHER.

    >>> kernel_class("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn")
    KernelClass(family=<Family.GEMM: 'gemm'>, tensor_core=True, dtype='bf16')
    """
    name = name[:_MAX_NAME_LENGTH]
    text = name.lower()
    family = _family(text, _INDUCTOR_RULES if _INDUCTOR.match(text) else _RULES)
    if family not in MATMUL_FAMILIES or holds(text, _SERVES_A_PRODUCT):
        return KernelClass(family, tensor_core=False, dtype=None)
    return KernelClass(family, uses_tensor_cores(name), operand_type(name))


def _family(name: str, rules: tuple[tuple[Family, Fragments], ...]) -> Family:
    return next((family for family, rule in rules if holds(name, rule)), Family.OTHER)


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
"""Kernels that serve a product without multiplying: sums of partial products, layout changes, row sums."""

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
"""Kernels that torch.compile writes are named by what they fuse: `poi` is elementwise whatever it is fused from."""

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
"""First match wins: narrow names go before the wide ones that contain them."""
