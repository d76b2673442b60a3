"""Milestones of the recorded process."""

import pytest

from stepscope.record.lifetime import Lifetime


def test_a_start_that_the_kernel_does_not_give_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.record.lifetime.process_start_ns", lambda: None)
    assert Lifetime().leave_to(lambda message: None) == {"checkpoints": []}
