"""A gradient scaler is found by its operators, and costs the host what it takes until its flags are read."""

from pathlib import Path

import pytest
from tests.analyze.build import MAIN, RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose

STEPS = 6
FORWARD_US, BACKWARD_US, OPTIMIZER_US = 25_000.0, 40_000.0, 4_400.0


def a_step(r: RankTrace, n: int, scaling_us: float) -> None:
    step_us = FORWARD_US + BACKWARD_US + scaling_us + OPTIMIZER_US
    at = n * step_us
    r.step(n, at, at + step_us)
    r.annotation("forward_pass", at, at + FORWARD_US)
    r.ran("aten::addmm", at, at + FORWARD_US, **{"Sequence number": n})
    at += FORWARD_US
    args = {"Sequence number": n, "Fwd thread id": 1}
    with r.op("autograd::engine::evaluate_function: AddmmBackward0", at, at + BACKWARD_US, thread=MAIN, **args):
        r.ran("aten::mm", at, at + BACKWARD_US)
    at += BACKWARD_US
    if scaling_us:
        r.ran("aten::_amp_foreach_non_finite_check_and_unscale_", at, at + 0.98 * scaling_us)
        r.ran("aten::item", at + 0.98 * scaling_us, at + 0.99 * scaling_us)
    r.annotation("Optimizer.step#SGD.step", at + 0.99 * scaling_us, at + 0.99 * scaling_us + OPTIMIZER_US)
    r.ran("aten::_foreach_add_", at + 0.99 * scaling_us, at + 0.99 * scaling_us + OPTIMIZER_US)
    if scaling_us:
        end = at + scaling_us + OPTIMIZER_US
        r.ran("aten::_amp_update_scale_", end - 0.01 * scaling_us, end)


def found(folder: Path, *, scaling_us: float) -> list[Finding]:
    r = RankTrace(0)
    for n in range(STEPS):
        a_step(r, n, scaling_us)
    account = account_of(built_run(folder, [r]))
    return [f for f in diagnose(account).findings if f.id == "mixed-precision-overhead"]


def test_planted_scaling_is_found_with_its_time(tmp_path: Path) -> None:
    (one,) = found(tmp_path, scaling_us=10_000)
    assert one.alone_ns == pytest.approx(10e6, rel=0.05)
    assert "bfloat16" in one.remedy


def test_scaling_that_takes_more_than_a_hundredth_of_the_step_is_listed(tmp_path: Path) -> None:
    (one,) = found(tmp_path, scaling_us=1_200)
    assert one.alone_ns == pytest.approx(1.2e6, rel=0.05)


def test_step_without_a_scaler_has_no_such_finding(tmp_path: Path) -> None:
    assert found(tmp_path, scaling_us=0) == []
