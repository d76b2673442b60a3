"""Whether the name of a matrix-product kernel says that it runs on tensor (matrix) cores, and in which type.

| scheme | example | read as |
|---|---|---|
| cuBLAS, plain cores | `ampere_sgemm_128x64_nn`, `sm80_xmma_gemm_f32f32_..._ffma` | no; fp32 |
| cuBLAS, tensor cores | `ampere_bf16_s16816gemm_bf16_...`, `sm90_xmma_gemm_bf16bf16_..._warpgroupsize` | yes; bf16 |
| cuBLAS since Hopper | `nvjet_sm90_tst_...`: type of operands, sum, result (t bf16, h fp16, q fp8) | yes; bf16 |
| CUTLASS, plain cores | `cutlass_80_simt_sgemm_...` | no; fp32 |
| CUTLASS, tensor cores | `cutlass_80_tensorop_s1688gemm_...`: 16 x 8 x 8 in single precision is TF32 | yes; tf32 |
| Tensile | `Cijk_Ailk_Bljk_BBS_BH_..._MI16x16x16`: MI is a matrix instruction | yes; bf16 |
| Composable Kernel, MIOpen | `..._xdl_...`, `igemm_fwd_gtcx3_nhwc_bf16_...` | yes; bf16 |
| cuDNN attention | `..._native_sdpa_sm90_flash_fprop_wgmma_f16_...`: f16 is any 16-bit type | yes; not said |
"""

import re

from stepscope.cost.name_patterns import any_of, holds


def uses_tensor_cores(name: str) -> bool | None:
    """Return whether a matrix product runs on tensor cores, None where its name does not say."""
    text = name.lower()
    if holds(text, _PLAIN):
        return False
    return True if holds(text, _TENSOR) else None


def operand_type(name: str) -> str | None:
    """Return the type of a matrix product's operands, None where its name does not say."""
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


_PLAIN = any_of(
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
