"""The window of a job under nsys or ncu: the tool's own limits count, not those of a profiler that is not there."""

from pathlib import Path
from typing import Any

import pytest

from stepscope.record.config import RecordConfig
from stepscope.record.window import window as windows
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.guards import ProfilerGuard


class Range:
    """Notes what is asked of it, in place of CUDA."""

    asked: list[str]

    def __init__(self) -> None:
        type(self).asked = ["made"]

    def prepare(self) -> None:
        self.asked.append("prepare")

    def start(self) -> None:
        self.asked.append("start")

    def stop(self, *, about: dict[str, Any]) -> None:
        self.asked.append(f"stop before {about['last_step']}")

    def cancel(self, *, prepared: bool) -> None:
        self.asked.append("cancel")


def test_a_tool_that_takes_its_time_and_memory_keeps_its_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "CudaRange", Range)
    closed: list[dict[str, Any]] = []
    config = RecordConfig(
        tool="cuda", outside_tool="ncu", wait=2, warmup=1, active=2, max_seconds=1e-9, max_events=1, max_memory_mb=1
    )
    window = windows.Window(
        config, guard=ProfilerGuard(), scratch=tmp_path, on_open=lambda: None, on_closed=closed.append
    )
    window.usual = TypicalStep(events=1000, longest_s=1e-9)
    held = []
    for step in range(7):
        window.before_step(step)
        held.append(bytearray(8_000_000))
        window.look_at_budget()
        window.after_step()
    assert Range.asked == ["made", "prepare", "start", "stop before 5"]
    assert [(one["first_step"], one["last_step"], one["cut"]) for one in closed] == [(3, 5, None)]
