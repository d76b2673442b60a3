"""An operator's work is shared out among its kernels, and each product has a precision."""

from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.products import (
    ADD_KERNEL,
    BF16_KERNEL,
    FP8_KERNEL,
    FP32_KERNEL,
    REDUCE_KERNEL,
    TF32_KERNEL,
    matmul,
    shapes,
)

from stepscope.analyze.kernel_costs import FAMILIES, PRECISIONS, KernelCosts, call_costs, kernel_costs

MM = 2 * 1024**3


def costs_of(tmp_path: Path, r: RankTrace) -> KernelCosts:
    return kernel_costs(call_costs(built_run(tmp_path, [r]).ranks[0]))


def test_bytes_are_shared_by_time_and_flops_go_to_what_multiplies(tmp_path: Path) -> None:
    r = RankTrace()
    with r.op("aten::mm", 0, 50, **shapes([1024, 1024], [1024, 1024])):
        r.kernel(BF16_KERNEL, at=10, start=100, end=130)
        r.kernel(REDUCE_KERNEL, at=20, start=130, end=140)
    costs = costs_of(tmp_path, r)
    assert costs.flops.tolist() == [MM, 0]
    total = 3 * 1024 * 1024 * 2
    assert costs.bytes == pytest.approx([0.75 * total, 0.25 * total])
    assert [FAMILIES[f].value for f in costs.family] == ["gemm", "gemm"]


def test_several_products_of_one_call_share_its_flops_by_time(tmp_path: Path) -> None:
    r = RankTrace()
    with r.op("aten::mm", 0, 50, **shapes([1024, 1024], [1024, 1024])):
        r.kernel(BF16_KERNEL, at=10, start=100, end=130)
        r.kernel(BF16_KERNEL, at=20, start=130, end=140)
    assert costs_of(tmp_path, r).flops == pytest.approx([0.75 * MM, 0.25 * MM])


def test_an_unknown_kernel_takes_family_and_flops_of_its_operator(tmp_path: Path) -> None:
    r = RankTrace()
    matmul(r, 0, start=100, end=200, kernel="my_own_kernel")
    costs = costs_of(tmp_path, r)
    assert costs.flops.tolist() == [MM]
    assert costs.is_matmul.tolist() == [True]
    assert PRECISIONS[costs.precision[0]] == "bf16"
    assert costs.tensor_core.tolist() == [-1]


def test_without_a_costed_operator_the_work_is_unknown_not_zero(tmp_path: Path) -> None:
    r = RankTrace()
    r.kernel(BF16_KERNEL, at=None, start=0, end=50)
    with r.op("my::op", 0, 50):
        r.kernel(BF16_KERNEL, at=10, start=100, end=130)
    costs = costs_of(tmp_path, r)
    assert np.isnan(costs.flops).all()
    assert np.isnan(costs.bytes).all()
    assert costs.is_matmul.all()


@pytest.mark.parametrize(
    ("kernel", "kind", "device", "precision"),
    [
        (BF16_KERNEL, "c10::BFloat16", "NVIDIA H200", "bf16"),
        (FP32_KERNEL, "float", "NVIDIA H200", "fp32"),
        (TF32_KERNEL, "float", "NVIDIA H200", "tf32"),
        (FP8_KERNEL, "c10::Float8_e4m3fn", "NVIDIA H200", "fp8"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "float", "NVIDIA H200", "tf32"),
        ("Cijk_Alik_Bljk_SB_Bias_MT64x16x32_MI16x16x1", "float", "AMD Instinct MI300X", "fp32"),
    ],
)
def test_precision_is_that_of_the_operands_and_the_unit(
    tmp_path: Path, kernel: str, kind: str, device: str, precision: str
) -> None:
    r = RankTrace(device=device)
    matmul(r, 0, start=100, end=200, kernel=kernel, kind=kind)
    costs = costs_of(tmp_path, r)
    assert PRECISIONS[costs.precision[0]] == precision


def test_kernels_that_do_not_multiply_have_no_precision(tmp_path: Path) -> None:
    r = RankTrace()
    with r.op("aten::add", 0, 50, **shapes([1024], [1024], kind="float")):
        r.kernel(ADD_KERNEL, at=10, start=100, end=130)
    costs = costs_of(tmp_path, r)
    assert costs.precision.tolist() == [0]
    assert costs.flops.tolist() == [0]
    assert costs.bytes.tolist() == [3 * 1024 * 4]
