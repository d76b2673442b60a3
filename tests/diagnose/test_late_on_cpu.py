"""A late CPU rank: what the steps say that were not profiled is beside what the trace says."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import Run
from stepscope.run.step_log import StepLog, step_log_of

MS = 1000.0
LATE_PROFILED, OWN, TRANSFER = 80 * MS, 50 * MS, 10 * MS
STEP = LATE_PROFILED + OWN + TRANSFER + 1 * MS


def profiled_run(folder: Path) -> Run:
    """Return a run in which rank 1 is late by 80 ms, and rank 0 waits for it in its collective."""
    traces = []
    for rank in range(2):
        trace = RankTrace(rank, world_size=2)
        for n in range(6):
            at = n * STEP
            own = OWN + (LATE_PROFILED if rank else 0)
            trace.step(n, at, at + STEP)
            trace.ran("aten::mm", at, at + own)
            trace.gloo("allreduce", at=at + own, start=at + own + 10, end=at + STEP - 1 * MS, elements=1_000_000)
            trace.ran("aten::add_", at + STEP - 1 * MS, at + STEP)
        traces.append(trace)
    return built_run(folder, traces)


def logged(rank: int, *, late_ms: float) -> StepLog:
    """Return 40 steps without the profiler; 50 ms of each are every rank's own."""
    own_ms, step_ms = 50 + (late_ms if rank else 0), 61 + late_ms
    lines = [
        {
            "step": i,
            "start_ns": int(1e9 + i * step_ms * 1e6),
            "end_ns": int(1e9 + (i + 1) * step_ms * 1e6),
            "dur_ns": int(step_ms * 1e6),
            "regions": {"gradient_sync": {"ns": int((step_ms - own_ms - i % 3 / 10) * 1e6), "n": 1}},
        }
        for i in range(40)
    ]
    return step_log_of(lines, rank=rank)


def straggler(run: Run, *, late_ms: float | None) -> Finding:
    logs = () if late_ms is None else tuple(logged(rank, late_ms=late_ms) for rank in range(2))
    return next(f for f in diagnose(account_of(replace(run, logs=logs))).findings if f.id == "straggler")


def unprofiled(found: Finding) -> list[object]:
    return [e.value for e in found.evidence if "without the profiler" in e.what]


def test_lateness_without_the_profiler_is_among_the_evidence(tmp_path: Path) -> None:
    found = straggler(profiled_run(tmp_path), late_ms=60)
    assert found.ranks == (1,) and found.saving_ns == pytest.approx(80e6, rel=0.02)
    assert unprofiled(found) == [pytest.approx(60, rel=0.02)]


@pytest.mark.parametrize("late_ms", [None, 0.0])
def test_steps_that_show_nobody_late_are_no_evidence(tmp_path: Path, late_ms: float | None) -> None:
    """Who waits elsewhere than for gradients looks equal in the log."""
    found = straggler(profiled_run(tmp_path), late_ms=late_ms)
    assert found.saving_ns == pytest.approx(80e6, rel=0.02) and unprofiled(found) == []
