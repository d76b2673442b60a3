"""What autocast converts for each operator is named where nothing is trained, and saves what it takes."""

from pathlib import Path

import pytest
from tests.analyze.build import MAIN, RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose

CAST_US, PRODUCT_US = 300.0, 400.0


def found(folder: Path, *, cast: str = "aten::to", trains: bool = False) -> list[Finding]:
    """Return what is said of casts in a job of three products a step, each after an operator `cast` on its weight."""
    rank, layer_us = RankTrace(), CAST_US + PRODUCT_US
    step_us = (3 + trains) * layer_us + 1
    for number in range(5):
        t = number * step_us
        rank.step(number, t, t + step_us)
        for i in range(3):
            at, start = t + 40 * i, t + i * layer_us
            with rank.op("aten::linear", at, at + 30):
                with rank.op(cast, at + 1, at + 12):
                    rank.kernel("unrolled_elementwise_kernel", at=at + 3, start=start, end=start + CAST_US)
                with rank.op("aten::linear", at + 14, at + 29):
                    rank.kernel("nvjet_hsh_128x256", at=at + 20, start=start + CAST_US, end=start + layer_us)
        if trains:
            args = {"Sequence number": number, "Fwd thread id": 1}
            with rank.op("autograd::engine::evaluate_function: AddmmBackward0", t + 130, t + 150, thread=MAIN, **args):
                rank.kernel("nvjet_hsh_128x256", at=t + 140, start=t + 3 * layer_us, end=t + 4 * layer_us)
        rank.call("cudaDeviceSynchronize", t + 200, t + step_us - 1)
    findings = diagnose(account_of(built_run(folder, [rank]))).findings
    return [f for f in findings if f.id == "mixed-precision-overhead"]


def test_casts_of_autocast_are_named_and_save_their_time(tmp_path: Path) -> None:
    (one,) = found(tmp_path)
    assert one.title.startswith("Autocast")
    assert one.alone_ns == pytest.approx(3 * CAST_US * 1e3, rel=0.1)
    assert "model.to(torch.bfloat16)" in one.remedy


def test_copies_that_the_operator_makes_itself_are_not(tmp_path: Path) -> None:
    assert found(tmp_path, cast="aten::copy_") == []


def test_casts_in_training_are_not(tmp_path: Path) -> None:
    assert found(tmp_path, trains=True) == []
