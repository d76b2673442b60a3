"""Convolutions that convert the layout of their tensors are named, and save what the conversions take."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.diagnose.matched import matched

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import conclude, diagnose
from stepscope.whatif.settings import fix_of

STEP = 2000
TO_LAST = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float, false>"
TO_FIRST = "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, float, true>"


def account(folder: Path, *, convert_us: float, name: tuple[str, str] = (TO_LAST, TO_FIRST)) -> Account:
    """Return a job of three convolutions a step, each of 400 us between two kernels of `convert_us`."""
    rank = RankTrace()
    kernels = [(name[0], convert_us), ("sm90_xmma_fprop_implicit_gemm_bf16_nhwc", 400.0), (name[1], convert_us)] * 3
    step_us = sum(took for _, took in kernels)
    for number in range(5):
        t = number * (step_us + 1)
        rank.step(number, t, t + step_us + 1)
        start = t
        for i, (kernel, took) in enumerate(kernels):
            with rank.op("aten::cudnn_convolution", t + 5 * i, t + 5 * i + 4):
                rank.kernel(kernel, at=t + 5 * i + 1, start=start, end=start + took)
            start += took
        rank.call("cudaDeviceSynchronize", t + 60, t + step_us)
    return account_of(built_run(folder, [rank]))


def test_conversions_are_named_and_save_their_time(tmp_path: Path) -> None:
    found = account(tmp_path, convert_us=100)
    first = diagnose(found).findings[0]
    assert (first.id, first.title) == ("memory-bound-kernels", "Convolutions convert the layout of their tensors")
    assert first.alone_ns == pytest.approx(6 * 100_000, rel=0.05)
    assert {e.what: e.value for e in first.evidence} == {"conversions per step": 6, "their device time per step": 0.6}
    assert "channels_last" in first.remedy
    assert conclude(found, diagnose(found)).reason.startswith("converting the layout of tensors costs ")


def test_fusing_does_not_claim_them(tmp_path: Path) -> None:
    titles = [f.title for f in diagnose(account(tmp_path, convert_us=100)).findings]
    assert "Consecutive elementwise kernels are not fused" not in titles


def test_what_if_of_fused_kernels_leaves_them(tmp_path: Path) -> None:
    assert fix_of(account(tmp_path, convert_us=100), "memory-bound-kernels") is None


@pytest.mark.parametrize(
    ("convert_us", "name"), [(4.0, (TO_LAST, TO_FIRST)), (100.0, ("elementwise_kernel_with_nchw", "nhwc_reduce"))]
)
def test_few_conversions_and_other_kernels_are_not(tmp_path: Path, convert_us: float, name: tuple[str, str]) -> None:
    found = account(tmp_path, convert_us=convert_us, name=name)
    assert matched(found, "memory-bound-kernels", "Convolutions") == []
