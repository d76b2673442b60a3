"""Anomaly detection that was left on is named by the step log and by looks for NaN in the nodes of backward."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import MAIN, RankTrace, built_run
from tests.analyze.step_logs import log_lines

from stepscope.analyze.account import account_of
from stepscope.contract.step_line import ANOMALY_DETECTION, FORWARD
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.run.side_files import step_log_of

STEPS, NODES = 6, 10
FORWARD_US, NODE_US, LOOK_US, OPTIMIZER_US = 4000.0, 300.0, 100.0, 1000.0
STEP_US = FORWARD_US + NODES * NODE_US + OPTIMIZER_US


def a_step(r: RankTrace, n: int, looked: int, inside: str | None) -> None:
    at = n * STEP_US
    r.step(n, at, at + STEP_US)
    r.annotation("forward_pass", at, at + FORWARD_US)
    for k in range(NODES):
        start = at + k * FORWARD_US / NODES
        r.ran("aten::addmm", start, start + FORWARD_US / NODES, **{"Sequence number": NODES * n + k})
    at += FORWARD_US
    for k in range(NODES):
        args = {"Sequence number": NODES * n + NODES - 1 - k, "Fwd thread id": 1}
        with r.op("autograd::engine::evaluate_function: AddmmBackward0", at, at + NODE_US, thread=MAIN, **args):
            r.ran("aten::mm", at, at + NODE_US - LOOK_US)
            with r.op(inside, at + NODE_US - LOOK_US, at + NODE_US, thread=MAIN) if inside else nullcontext():
                if k < looked:
                    half = at + NODE_US - LOOK_US / 2
                    r.ran("aten::isnan", at + NODE_US - LOOK_US, half)
                    r.ran("aten::_is_any_true", half, at + NODE_US)
        at += NODE_US
    r.annotation("Optimizer.step#AdamW.step", at, at + OPTIMIZER_US)
    r.ran("aten::_fused_adamw_", at, at + OPTIMIZER_US)


def found(folder: Path, *, looked: int, stacks_us: float = 0.0, inside: str | None = None) -> list[Finding]:
    folder.mkdir(exist_ok=True)
    r = RankTrace(0)
    for n in range(STEPS):
        a_step(r, n, looked, inside)
    run = built_run(folder, [r])
    regions = {FORWARD: (FORWARD_US - stacks_us) / 1000, "outside": (STEP_US - FORWARD_US) / 1000}
    regions |= {ANOMALY_DETECTION: stacks_us / 1000} if stacks_us else {}
    lines = log_lines([regions] * 20, window=range(20, 20))
    account = account_of(replace(run, logs=(step_log_of(lines, rank=0),)))
    return [f for f in diagnose(account).findings if "anomaly" in f.title]


def test_looks_for_nan_in_every_node_are_named(tmp_path: Path) -> None:
    (one,) = found(tmp_path, looked=NODES)
    assert one.id == "host-stall" and "set_detect_anomaly(False)" in one.remedy
    assert one.alone_ns == pytest.approx(NODES * LOOK_US * 1000, rel=0.05)


def test_stacks_are_taken_from_the_step_log(tmp_path: Path) -> None:
    (one,) = found(tmp_path, looked=NODES, stacks_us=1500)
    assert one.alone_ns == pytest.approx((NODES * LOOK_US + 1500) * 1000, rel=0.05)
    (alone,) = found(tmp_path / "alone", looked=0, stacks_us=1500)  # detect_anomaly(check_nan=False)
    assert alone.alone_ns == pytest.approx(1500 * 1000, rel=0.05)


def test_a_job_that_looks_at_some_gradients_itself_is_not_accused(tmp_path: Path) -> None:
    assert found(tmp_path, looked=NODES // 3) == []
    assert found(tmp_path / "none", looked=0) == []
    assert found(tmp_path / "own", looked=NODES, inside="SafeDivBackward") == []  # a Function that looks itself
