"""A late CPU rank: what the steps say that were not profiled is beside what the trace says."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.step_logs import log_lines

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import Run
from stepscope.run.side_files import StepLog, step_log_of

MS = 1000.0
LATE_PROFILED, OWN, TRANSFER = 80 * MS, 50 * MS, 10 * MS


def profiled_run(folder: Path, *, late: float = LATE_PROFILED) -> Run:
    """Return a run in which rank 1 is late by 80 ms, and rank 0 waits for it in its collective."""
    step = late + OWN + TRANSFER + 1 * MS
    traces = []
    for rank in range(2):
        trace = RankTrace(rank, world_size=2)
        for n in range(6):
            at = n * step
            own = OWN + (late if rank else 0)
            trace.step(n, at, at + step)
            trace.ran("aten::mm", at, at + own)
            trace.gloo("allreduce", at=at + own, start=at + own + 10, end=at + step - 1 * MS, elements=1_000_000)
            trace.ran("aten::add_", at + step - 1 * MS, at + step)
        traces.append(trace)
    return built_run(folder, traces)


def logged(rank: int, *, late_ms: float, hidden_ms: float = 0.0, transfer_ms: float = 11.0) -> StepLog:
    """Return 40 steps without the profiler; 50 ms of each are every rank's own, and `hidden_ms` waits elsewhere than
    for gradients.
    """
    own_ms, step_ms = 50 + hidden_ms + (late_ms if rank else 0), 50 + transfer_ms + hidden_ms + late_ms
    waits = (step_ms - own_ms - i % 3 / 10 for i in range(40))
    lines = log_lines({"gradient_sync": wait, "outside": step_ms - wait} for wait in waits)
    return step_log_of(lines, rank=rank)


def account(run: Run, **times_ms: float) -> Account:
    logs = tuple(logged(rank, **times_ms) for rank in range(2))
    return account_of(replace(run, logs=logs))


def straggler(found: Account) -> Finding | None:
    return next((f for f in diagnose(found).findings if f.id == "straggler"), None)


def unprofiled(found: Finding) -> list[object]:
    return [e.value for e in found.evidence if "without the profiler" in e.what]


def test_saving_is_of_the_lateness_in_the_steps_without_the_profiler(tmp_path: Path) -> None:
    found = straggler(account(profiled_run(tmp_path), late_ms=60))
    assert found is not None
    assert found.ranks == (1,) and found.saving_ns == pytest.approx(60e6, rel=0.05)
    assert found.cost_ns == pytest.approx(60e6, rel=0.02) and unprofiled(found) == [pytest.approx(60, rel=0.02)]


def test_rank_that_was_late_in_the_window_alone_is_no_straggler(tmp_path: Path) -> None:
    found = account(profiled_run(tmp_path), late_ms=0, transfer_ms=60)
    assert not found.stragglers and straggler(found) is None
    assert any("rank 1 was 80.0 ms late per step in the 6 profiled steps" in line for line in found.warnings)


def test_log_cannot_clear_a_rank_where_the_others_wait_elsewhere_than_for_gradients(tmp_path: Path) -> None:
    found = straggler(account(profiled_run(tmp_path), late_ms=0, hidden_ms=80))
    assert found is not None and found.saving_ns == pytest.approx(80e6, rel=0.02) and unprofiled(found) == []


def test_trace_alone_names_the_late_rank(tmp_path: Path) -> None:
    found = straggler(account_of(profiled_run(tmp_path)))
    assert found is not None and found.saving_ns == pytest.approx(80e6, rel=0.02)


def test_rank_that_only_the_log_shows_late_is_named(tmp_path: Path) -> None:
    run = profiled_run(tmp_path, late=0.0)
    assert straggler(account_of(run)) is None
    found = straggler(account(run, late_ms=40))
    assert found is not None and found.ranks == (1,) and found.cause.startswith("host")
    assert found.saving_ns == pytest.approx(40e6, rel=0.1)
