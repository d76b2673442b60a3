"""Operators with recorded shapes, on the builder of `build.py`: products, elementwise, attention, checkpointing."""

from typing import Any

from tests.analyze.build import AUTOGRAD, MAIN, RankTrace

BF16_KERNEL = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
FP32_KERNEL = "cutlass_80_simt_sgemm_128x256_8x4_nt_align1"
FP8_KERNEL = "nvjet_sm90_qqtst_128x256_128x4_2x1_v_bz_TNT"
ADD_KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"

FORWARD: dict[str, Any] = {"Sequence number": 7, "Fwd thread id": 0}
"""what the profiler writes on operators that run with gradients on"""


def shapes(*dims: list[int], kind: str = "c10::BFloat16") -> dict[str, Any]:
    """Return the recorded inputs of an operator on tensors of one type."""
    return {"Input Dims": list(dims), "Input type": [kind] * len(dims)}


def matmul(
    r: RankTrace, at: float, *, m: int = 1024, n: int = 1024, k: int = 1024, start: float, end: float,
    kernel: str = BF16_KERNEL, kind: str = "c10::BFloat16", thread: int = MAIN, **args: Any,
) -> None:  # fmt: skip
    """Add `aten::mm` of [m, k] by [k, n] with its kernel: 2 m n k FLOPs."""
    with r.op("aten::mm", at, at + 10, thread=thread, **shapes([m, k], [k, n], kind=kind), **args):
        r.kernel(kernel, at=at + 2, start=start, end=end, thread=thread)


def add(r: RankTrace, at: float, *, elements: int, start: float, end: float) -> None:
    """Add `aten::add` of two fp32 tensors: 12 bytes per element."""
    inputs = shapes([elements], [elements], kind="float")
    with r.op("aten::add", at, at + 10, **inputs):
        r.kernel(ADD_KERNEL, at=at + 2, start=start, end=end)


def node(r: RankTrace, name: str, start: float, end: float) -> None:
    """Add an autograd node's evaluation; operators inside its span are backward's."""
    args: dict[str, Any] = {"Sequence number": 7, "Fwd thread id": 1}
    r.ran(f"autograd::engine::evaluate_function: {name}", start, end, thread=AUTOGRAD, **args)
    r.ran(name, start + 0.5, end - 0.5, thread=AUTOGRAD, **args)
