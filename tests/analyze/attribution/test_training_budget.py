"""A window of which one step was held up: in which parts are ordinary steps longer than the others, by the log?"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.budget import beyond_window, budgets, step_budget
from stepscope.analyze.training_step import training_step
from stepscope.run.aligned import aligned

MS = 1000
WINDOW = {20: 8, 21: 10, 22: 13, 23: 14, 24: 10, 25: 9, 26: 12}
"""ms by step; forward takes all but 2"""
USUAL_MS = (16, 20, 24)
"""in turn: a busy machine"""


def logged(step: int) -> dict[str, Any]:
    dur_ms = WINDOW.get(step, USUAL_MS[step % 3])
    return {
        "step": step,
        "start_ns": 10**9 + step * 10**8,
        "end_ns": 10**9 + step * 10**8 + dur_ms * 10**6,
        "dur_ns": dur_ms * 10**6,
        "profiled": step in WINDOW,
        "phase": "window" if step in WINDOW else "before" if step < 20 else "after",
        "regions": {"forward_pass": {"ns": (dur_ms - 2) * 10**6, "n": 1}, "optimizer_step": {"ns": 2 * 10**6, "n": 1}},
    }


def test_parts_grow_by_what_the_budgets_own_steps_lack(tmp_path: Path) -> None:
    r, at = RankTrace(backend="gloo"), 0
    for step, dur_ms in WINDOW.items():
        end = at + dur_ms * MS
        r.step(step, at, end)
        r.annotation("forward_pass", at, end - 2 * MS)
        r.ran("aten::mm", at, end - 2 * MS)
        r.annotation("Optimizer.step#SGD.step", end - 2 * MS, end)
        r.ran("aten::add_", end - 2 * MS, end)
        at = end
    lines = [{"schema": 1, "rank": 0, "world_size": 1}, *map(logged, range(40))]
    (tmp_path / "rank00000.steps.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    run = built_run(tmp_path, [r], description={"schema": 1, "world_size": 1})
    (budget,) = budgets(aligned(run))
    training = training_step(run.logs)
    assert budget is not None and training is not None
    beyond = beyond_window(training, run.ranks, [budget.periods], [False])
    whole = step_budget([budget], unprofiled_ns=round(training.ordinary_ns), beyond=beyond)
    assert whole is not None
    assert whole.ns("forward") + whole.ns("optimizer") == pytest.approx(whole.step_ns, rel=0.01)
    assert whole.ns("unknown") == pytest.approx(0, abs=0.01 * whole.step_ns)
