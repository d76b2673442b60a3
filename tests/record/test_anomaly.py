"""Stacks that autograd's anomaly detection keeps are timed, and hold no frame of ours."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.fx.traceback

from stepscope.contract.step_line import ANOMALY_DETECTION
from stepscope.record.hooks import install as anomaly
from stepscope.record.hooks.patches import Patches
from stepscope.record.window.guards import Interruptions


def in_place(*, trains: bool = True) -> tuple[Any, Patches]:
    loop, patches = SimpleNamespace(interruptions=Interruptions(), is_training_thread=lambda _: trains), Patches()
    anomaly.anomaly_install(loop, patches)  # type: ignore[arg-type]
    return loop.interruptions, patches


@pytest.mark.parametrize("trains", [True, False])
def test_stacks_are_timed_on_the_training_thread_and_hold_nothing_of_ours(trains: bool) -> None:
    noted, patches = in_place(trains=trains)
    original = torch.fx.traceback.format_stack.__wrapped__
    try:
        x = torch.ones(2, requires_grad=True)
        with torch.autograd.detect_anomaly(check_nan=False):
            y = x * 2
    finally:
        patches.undo()
    stack = y.grad_fn.metadata["traceback_"]
    assert __file__ in stack[-1] and not any(anomaly.__file__ in line for line in stack)
    taken = noted.taken(before_ns=1 << 62)
    assert [one.name for one in taken] == [ANOMALY_DETECTION] * trains
    assert all(0 < one.own_ns <= one.end_ns - one.begin_ns for one in taken)
    assert torch.fx.traceback.format_stack is original


def test_short_ones_right_after_one_another_are_one() -> None:
    noted = Interruptions()
    for begin_ns in (0, 2_000, 4_000, 5_000_000):
        noted.add("a", begin_ns, begin_ns + 1_000)
    noted.add("b", 5_002_000, 5_003_000)
    assert [(one.name, one.begin_ns, one.own_ns) for one in noted.taken(before_ns=1 << 62)] == [
        ("a", 0, 3_000), ("a", 5_000_000, 1_000), ("b", 5_002_000, 1_000),
    ]  # fmt: skip
