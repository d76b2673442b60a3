"""Five profiled steps name a rank; the steps without the profiler clear it, however busy the machine then was."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.analyze import stragglers as judged_module
from stepscope.analyze.stragglers import Straggler, training_stragglers
from stepscope.run.step_log import StepLog, step_log_of

STEPS, WINDOW = 60, range(20, 25)
TRACED_LATE_MS = 28.0


SHORT_STEPS_KNOWN = (2, 9, 17, 30, 38, 45, 53)
"""where steps are short the wait is measured a few times a second"""


def log(rank: int, own_ms: np.ndarray, step_ms: np.ndarray) -> StepLog:
    ends = 10**9 + np.cumsum(step_ms) * 1e6
    return step_log_of(
        [
            {
                "step": k,
                "start_ns": int(ends[k] - step_ms[k] * 1e6),
                "end_ns": int(ends[k]),
                "dur_ns": int(step_ms[k] * 1e6),
                "profiled": k in WINDOW,
                "phase": "window" if k in WINDOW else "before",
                "regions": {}
                if np.isnan(own_ms[k])
                else {"gradient_sync": {"ns": int((step_ms[k] - own_ms[k]) * 1e6), "n": 1}},
            }
            for k in range(STEPS)
        ],
        rank=rank,
    )


def judged(monkeypatch: pytest.MonkeyPatch, logged_ms: np.ndarray, traced_ms: np.ndarray) -> Any:
    """Return the judgement on rank 1, late in the trace; own times by rank and step."""
    ranks = [SimpleNamespace(rank=rank) for rank in range(2)]
    monkeypatch.setattr(judged_module, "own_times", lambda _: traced_ms * 1e6)
    monkeypatch.setattr(judged_module, "common_steps", lambda _: np.array(WINDOW))
    late = Straggler(1, "host", TRACED_LATE_MS * 1e6, 2, 5, 5.7, 1.1, {})
    step_ms = np.nan_to_num(logged_ms.max(axis=0), nan=250.0) + 5
    logs = [log(rank, own, step_ms) for rank, own in enumerate(logged_ms)]
    shared: Any = SimpleNamespace(run=SimpleNamespace(ranks=ranks))
    shared.whole = shared
    return training_stragglers(shared, [late], logs=logs, training=None)


def test_a_busier_machine_outside_the_window_does_not_keep_the_log_from_clearing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    logged = 300 + 20 * rng.standard_normal((2, STEPS))
    traced = np.array([[200.0] * 5, [200.0 + TRACED_LATE_MS] * 5])
    logged[:, list(WINDOW)] = traced
    found = judged(monkeypatch, logged, traced)
    assert found.stragglers == ()
    assert "it is no straggler" in found.notes[0]


def test_a_log_whose_own_times_hold_waits_does_not_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = np.array([[200.0] * 5, [200.0 + TRACED_LATE_MS] * 5])
    logged = np.full((2, STEPS), 200.0 + TRACED_LATE_MS)  # rank 0 waits for rank 1 where the log does not see it
    found = judged(monkeypatch, logged, traced)
    assert [s.rank for s in found.stragglers] == [1]
    assert found.stragglers[0].late_ns_per_step == TRACED_LATE_MS * 1e6


def few_known(excess_ms: list[float]) -> np.ndarray:
    """Return own times of two ranks, known in the window and in seven other steps, where rank 1 has these more."""
    own = np.full((2, STEPS), np.nan)
    own[:, list(WINDOW)] = [[200.0], [200.0 + TRACED_LATE_MS]]
    own[0, list(SHORT_STEPS_KNOWN)] = 200.0
    own[1, list(SHORT_STEPS_KNOWN)] = 200.0 + np.array(excess_ms)
    return own


TRACED = np.array([[200.0] * 5, [200.0 + TRACED_LATE_MS] * 5])


@pytest.mark.parametrize(
    "excess_ms",
    [
        [-16.0, -9.1, 30.6, 30.9, -7.3, 4.5, 6.9],  # says nothing
        [35.3, 37.6, 24.7, 27.2, 30.3, -1.4, 30.6],  # as in a recording of equal ranks on busy cores
    ],
)
def test_few_steps_without_the_profiler_that_do_not_bear_it_out_are_no_straggler(
    excess_ms: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(monkeypatch, few_known(excess_ms), TRACED)
    assert found.stragglers == ()
    assert "a longer recording would tell" in found.notes[0]


def test_few_steps_that_are_all_late_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, few_known([28.0, 27.6, 28.7, 28.2, 27.3, 28.4, 28.6]), TRACED)
    assert [s.rank for s in found.stragglers] == [1]
    assert found.stragglers[0].late_ns_per_step == pytest.approx(28.2e6, rel=0.02)
