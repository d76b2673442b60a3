"""What ends a window early, and what does not.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import pytest

from stepscope.record.config import RecordConfig
from stepscope.record.window import budget as budget_module
from stepscope.record.window.budget import Budget, TypicalStep, max_window_events


class World:
    """A process whose memory and clock are set by hand."""

    now_s = 0.0
    held_bytes = 1_000_000_000


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(budget_module, "anonymous_bytes", lambda: world.held_bytes)
    monkeypatch.setattr("stepscope.record.window.budget.time.monotonic", lambda: world.now_s)
    return world


CONFIG = RecordConfig(max_events=10_000, max_seconds=60, max_memory_mb=100)
USUAL = TypicalStep(events=1_000, longest_s=1.0)


def test_counted_steps_fill_the_window_up_to_the_budget(world: World) -> None:
    budget = Budget(CONFIG, usual=USUAL)
    assert budget.spent_at_step(9) is None
    assert "event budget: 11000" in str(budget.spent_at_step(10))


def test_T12_export_stays_far_below_the_groups_timeout() -> None:
    assert max_window_events(RecordConfig(), group_timeout_s=1800) == RecordConfig().max_events
    assert max_window_events(RecordConfig(), group_timeout_s=None) == RecordConfig().max_events
    assert max_window_events(RecordConfig(), group_timeout_s=4) * 20e-6 <= 1.0
