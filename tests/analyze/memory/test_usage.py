"""Peaks, categories, steps and growth of a constructed allocator's events are recovered."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import AUTOGRAD, MAIN, PID, RankTrace, built_run
from tests.analyze.jobs import STEP, training_step

from stepscope.analyze.memory import MemoryView, RankMemory, memory_view
from stepscope.analyze.phases import passes
from stepscope.run.load import Run
from stepscope.run.side_files import MemoryEdge, SideFiles
from stepscope.run.step_log import StepLog, step_log_of
from stepscope.units import ms

MB = 1_000_000
KEPT = 300 * MB


@dataclass
class Allocator:
    """Writes the events that the profiler would, with the allocator's totals."""

    trace: RankTrace
    allocated: int = KEPT
    reserved: int = 1000 * MB
    addresses: int = 4096
    totals: bool = True
    sizes: dict[int, int] = field(default_factory=dict)

    def get(self, size: int, *, at: float, thread: int = MAIN) -> int:
        self.addresses += 512
        self.sizes[self.addresses] = size
        self._event(size, self.addresses, at, thread)
        return self.addresses

    def free(self, address: int, *, at: float, thread: int = MAIN) -> None:
        self._event(-self.sizes.pop(address), address, at, thread)

    def _event(self, change: int, address: int, at: float, thread: int) -> None:
        self.allocated += change
        args: dict[str, Any] = {"Bytes": change, "Addr": address, "Device Id": 0, "Device Type": 1}
        if self.totals:
            args |= {"Total Allocated": self.allocated, "Total Reserved": self.reserved}
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": PID, "tid": thread}
        self.trace.events.append({**event, "ts": self.trace._local_ns(at) / 1000, "args": args})


def training(allocator: Allocator, n: int, gradients: list[int]) -> list[int]:
    """One step: 40 MB activations and 10 MB scratch forward, 30 MB gradients, 5 MB scratch; returns the gradients."""
    at = n * STEP
    for address in gradients:
        allocator.free(address, at=at + 5)
    activations = [allocator.get(20 * MB, at=at + 30 + 250 * k) for k in range(2)]
    scratch = allocator.get(10 * MB, at=at + 300)
    allocator.free(scratch, at=at + 310)
    new = []
    for k, address in enumerate(reversed(activations)):
        new.append(allocator.get(15 * MB, at=at + 1010 + 500 * k, thread=AUTOGRAD))
        work = allocator.get(5 * MB, at=at + 1020 + 500 * k, thread=AUTOGRAD)
        allocator.free(work, at=at + 1030 + 500 * k, thread=AUTOGRAD)
        allocator.free(address, at=at + 1040 + 500 * k, thread=AUTOGRAD)
    return new


def run_of(
    tmp_path: Path, *, steps: int = 3, totals: bool = True, leak: int = 0, first: list[int] | None = None
) -> Run:
    r = RankTrace()
    a = Allocator(r, totals=totals)
    gradients: list[int] = []
    for size in first or []:  # gradients of the step before the window
        a.addresses += 512
        a.sizes[a.addresses] = size
        a.allocated += size
        gradients.append(a.addresses)
    for n in range(steps):
        training_step(r, n)
        gradients = training(a, n, gradients)
        if leak:
            a.get(leak, at=n * STEP + 3530)
    return built_run(tmp_path, [r])


def seen(run: Run, logs: list[StepLog] | None = None) -> RankMemory:
    found: MemoryView | None = memory_view(run, passes=[passes(r) for r in run.ranks], logs=logs or [])
    assert found is not None
    return found.ranks[0]


def test_peak_has_its_moment_operator_and_categories(tmp_path: Path) -> None:
    m = seen(run_of(tmp_path, first=[15 * MB, 15 * MB]))
    assert m.peak is not None
    # two activations, one gradient and 5 MB of scratch, on top of what is kept
    assert m.peak_allocated_bytes == m.peak.allocated_bytes == KEPT + 60 * MB
    assert (m.peak.step, m.peak.phase, m.peak.operator) == (0, "backward", "MmBackward0")
    assert ms(m.peak.time_ns) == pytest.approx(1.020)
    assert m.peak.by_category == {
        "temporary": 5 * MB, "activations": 40 * MB, "gradients": 15 * MB, "other": 0, "kept": KEPT,
        "weights": None, "optimizer_state": None,
    }  # fmt: skip
    assert "part of `kept`" in m.reasons["optimizer_state"] and "part of `kept`" in m.reasons["weights"]
    assert [(h.name, h.size_bytes, h.blocks) for h in m.peak.by_operator] == [
        ("aten::mm", 40 * MB, 2),
        ("MmBackward0", 20 * MB, 2),
    ]
    assert m.cache_bytes == 1000 * MB - m.peak.allocated_bytes
    assert m.device == 0


def test_state_from_before_the_window_is_what_the_job_counted(tmp_path: Path) -> None:
    counted = MemoryEdge(0, 2, "end optimizer_step", {"parameters": 30 * MB, "optimizer": 60 * MB})
    run = run_of(tmp_path)
    m = seen(replace(run, beside=SideFiles(memory=(counted,))))
    assert m.peak is not None and m.peak.by_category is not None and m.timeline is not None
    parts = m.peak.by_category
    assert (parts["weights"], parts["optimizer_state"], parts["kept"]) == (30 * MB, 60 * MB, KEPT - 90 * MB)
    assert sum(size or 0 for size in parts.values()) == m.peak.allocated_bytes
    assert m.timeline.by_category is not None
    assert np.sum(list(m.timeline.by_category.values()), axis=0).tolist() == list(m.timeline.allocated_bytes)
    assert "optimizer_state" not in m.reasons


def test_without_totals_the_base_is_unknown_and_said_so(tmp_path: Path) -> None:
    m = seen(run_of(tmp_path, totals=False))
    assert m.peak is not None and m.peak.by_category is None
    assert m.peak_reserved_bytes is None and m.peak_allocated_bytes is None
    assert "counts only what the window allocated" in m.reasons["peak_allocated_bytes"]
    assert "no totals" in m.reasons["by_category"]


def test_source_lines_come_from_the_users_frames(tmp_path: Path) -> None:
    r = RankTrace()
    training_step(r, 0)
    r.python("threading.py(10): run", 1, 3000)
    r.python("train.py(33): step", 2, 900)
    r.python("torch/nn/modules/linear.py(130): forward", 10, 800)
    r.python("<built-in function linear>", 11, 790)
    training(Allocator(r), 0, [])
    m = seen(built_run(tmp_path, [r]))
    assert m.peak is not None
    assert [(h.name, h.size_bytes) for h in m.peak.by_source_line] == [("train.py(33): step", 40 * MB)]


def log(allocated: Any, *, rank: int = 0, retries: int = 0) -> StepLog:
    lines = [
        {
            "step": n, "start_ns": n, "end_ns": n + 1, "dur_ns": 1,
            "memory": {
                "allocated_bytes": int(x), "peak_allocated_bytes": int(max(allocated)), "reserved_bytes": 2 * int(x),
                "peak_reserved_bytes": 2 * int(max(allocated)), "host_bytes": 500, "host_peak_bytes": 600,
                "allocator_retries": retries * n,
            },
        }
        for n, x in enumerate(allocated)
    ]  # fmt: skip
    return step_log_of([json.loads(json.dumps(x)) for x in lines], rank=rank)


def test_step_log_alone_gives_peaks_retries_and_growth(tmp_path: Path) -> None:
    r = RankTrace()
    training_step(r, 0)
    m = seen(built_run(tmp_path, [r]), [log(np.linspace(100, 200, 50) * MB, retries=2)])
    assert m.peak is None
    assert "no memory events" in m.reasons["peak"]
    assert m.peak_allocated_bytes == 200 * MB
    assert m.peak_reserved_bytes == 400 * MB
    assert m.allocator_retries == 98
    assert m.host_peak_bytes == 600
    assert m.growth is not None and m.growth.leaks
    assert m.host_growth is not None and not m.host_growth.leaks
