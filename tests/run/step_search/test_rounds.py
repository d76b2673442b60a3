"""Steps of the optimizer that follow passes without gradients in turn are one round, in the window and in the log."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.run.load import Run
from stepscope.run.step_log import StepLog, step_log_of
from stepscope.run.unmarked_steps import in_rounds

STEPS, FIRST, LAST = 40, 21, 28
WRITES_MS, IMPROVES_MS = 80.0, 20.0


def log(*, every: int = 2, since: int = 3, until: int = STEPS, writes_ms: float = WRITES_MS) -> StepLog:
    """Return the log of a job that writes before every few steps, from the step `since` on as the recorder sees it."""
    lines: list[dict[str, Any]] = []
    at = 10**9
    for step in range(STEPS):
        writes = since <= step < until and (step - since) % every == 0
        own = {"forward_pass": IMPROVES_MS / 2, "backward_pass": IMPROVES_MS / 2}
        regions = own | ({"evaluation": writes_ms} if writes else {})
        dur = int(sum(regions.values()) * 1e6)
        in_window = FIRST <= step < LAST
        lines.append({
            "step": step, "start_ns": at, "end_ns": at + dur, "dur_ns": dur, "profiled": in_window,
            "device_ns": None if step == 9 else dur - 1,
            "phase": "window" if in_window else "before" if step < FIRST else "after",
            "regions": {name: {"ns": int(v * 1e6), "n": 1} for name, v in regions.items()},
            "memory": {"allocated_bytes": 1000 + step},
        })  # fmt: skip
        at += dur
    return step_log_of(lines, rank=0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return the window of steps 21 to 27: the passes are in 21, 23, 25 and 27."""
    trace = RankTrace(0)
    for n in range(FIRST, LAST):
        trace.step(n, 1000.0 * n, 1000.0 * (n + 1))
        trace.kernel("gemm", at=1000.0 * n + 10, start=1000.0 * n + 100, end=1000.0 * n + 900)
    return built_run(tmp_path, [trace])


def test_rounds_of_the_window_and_of_the_log_have_the_same_numbers(run: Run) -> None:
    said = {"unprofiled_step_ms": 55.0, "flops_per_step": 7, "tokens_per_step": 100, "warnings": ["x"], "model": "m"}
    ranks, logs, description, lines = in_rounds(run.ranks, [log()], said)
    (rank,), (joined,) = ranks, logs
    assert rank.steps.number.tolist() == [9, 10, 11]  # 21-22, 23-24, 25-26; of the next only one step was recorded
    assert ((rank.steps.end_ns - rank.steps.start_ns) == 2_000_000).all()
    assert rank.steps.recorded.number.tolist() == list(range(FIRST, LAST))
    assert rank.work.step.tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert joined.step.tolist() == list(range(18)) and joined.profiled.nonzero()[0].tolist() == [9, 10, 11, 12]
    assert (joined.dur_ns == int((WRITES_MS + 2 * IMPROVES_MS) * 1e6)).all()
    assert joined.device_ns[3] < 0 and (np.delete(joined.device_ns, 3) == joined.dur_ns[0] - 2).all()
    assert joined.column("regions.forward_pass.ns").tolist() == [IMPROVES_MS * 1e6] * 18
    assert joined.column("memory.allocated_bytes")[0] == 1004
    assert description == {"unprofiled_step_ms": 120.0, "tokens_per_step": 200, "warnings": [], "model": "m"}
    assert "a round of 2 steps" in lines[0]


@pytest.mark.parametrize(
    "steps",
    [
        log(every=1),  # a step is a round
        log(every=11),  # seldom: recurs in some steps
        log(since=9),  # an evaluation that began later
        log(until=30),  # and one that ended
        log(writes_ms=1.0),
    ],
)
def test_other_jobs_keep_their_steps(run: Run, steps: StepLog) -> None:
    ranks, logs, description, lines = in_rounds(run.ranks, [steps], {"flops_per_step": 7})
    assert (ranks, logs, description, lines) == (list(run.ranks), (steps,), {"flops_per_step": 7}, [])
