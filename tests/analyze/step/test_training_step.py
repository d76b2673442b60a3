"""The mean training step from constructed step logs: what recurs, why, on which rank, and what it adds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepscope.analyze.training_step import OUTSIDE, training_step
from stepscope.run.step_log import StepLog, step_log_of

STEPS = 60
Extra = Callable[[int], dict[str, float]]
"""regions (or OUTSIDE) in ms that a step has beyond the ordinary ones"""


def nothing(step: int) -> dict[str, float]:
    return {}


def every(n: int, **regions: float) -> Extra:
    return lambda step: regions if step % n == n - 1 else {}


def log(rank: int = 0, *, extra: Extra = nothing, waits: Extra = nothing, slower_after: float = 1.0) -> StepLog:
    """Return 60 steps of 50 ms (data 2, forward 18, backward 28, optimizer 1, 1 outside) with a window at 20 to 24."""
    rng = np.random.default_rng(rank)
    lines: list[dict[str, Any]] = []
    at = 10**9
    for step in range(STEPS):
        more, idle = dict(extra(step)), dict(waits(step))
        factor = rng.normal(1, 0.01) * (slower_after if step >= 25 else 1.0)
        regions = {
            "data_loading": 2.0,
            "forward_pass": 18 * factor,
            "backward_pass": 28 * factor,
            "optimizer_step": 1.0,
        }
        outside = 1.0 + more.pop("outside", 0.0) + idle.pop("outside", 0.0)
        for name, ms in (*more.items(), *idle.items()):
            regions[name] = regions.get(name, 0.0) + ms
        dur = int((sum(regions.values()) + outside) * 1e6)
        in_window = 20 <= step < 25
        lines.append(
            {
                "step": step,
                "start_ns": at,
                "end_ns": at + dur,
                "dur_ns": dur,
                "profiled": in_window,
                "phase": "window" if in_window else "before" if step < 20 else "after",
                "regions": {name: {"ns": int(ms * 1e6), "n": 1} for name, ms in regions.items()},
            }
        )
        at += dur
    return step_log_of(lines, rank=rank)


def test_even_training_has_nothing_that_recurs() -> None:
    found = training_step([log()])
    assert found is not None and found.mean_ns == pytest.approx(50e6, rel=0.01)
    assert found.recurring.total_ns < 0.01 * found.mean_ns and found.uneven is None


@pytest.mark.parametrize("cause", ["checkpoint", "evaluation", "garbage_collection", "compilation", "my_logging"])
def test_region_that_some_steps_have_is_named_with_what_it_adds(cause: str) -> None:
    found = training_step([log(extra=every(5, **{cause: 100.0}))])
    assert found is not None and found.ordinary_ns == pytest.approx(50e6, rel=0.01)
    assert found.recurring.causes == (cause,)
    assert found.recurring.rank_ns(cause)[0] == pytest.approx(20e6, rel=0.1)
    assert found.mean_ns == pytest.approx(70e6, rel=0.05) and found.uneven is not None
    assert found.recurring.without((cause,)).total_ns == 0


def test_log_without_a_region_for_it_knows_the_restarted_loader_by_its_first_batch() -> None:
    found = training_step([log(extra=every(6, data_loading=120.0, outside=140.0))])
    assert found is not None and found.recurring.causes == ("data_loading",)
    assert found.recurring.rank_ns("data_loading")[0] == pytest.approx(260e6 / 6, rel=0.1)


def test_host_time_outside_every_region_is_a_cause_of_its_own() -> None:
    found = training_step([log(extra=every(4, outside=600.0))])
    assert found is not None and found.recurring.causes == (OUTSIDE,)
    assert found.recurring.total_ns == pytest.approx(150e6, rel=0.1)


def test_single_long_step_without_a_name_is_a_hiccup_and_said() -> None:
    found = training_step([log(extra=lambda step: {"forward_pass": 400.0} if step == 40 else {})])
    assert found is not None and found.mean_ns == pytest.approx(50e6, rel=0.01)
    assert any("step 40 alone" in line for line in found.notes)


def test_longer_passes_in_some_steps_have_no_cause_but_their_region() -> None:
    found = training_step([log(extra=every(4, forward_pass=60.0))])
    assert found is not None and not found.recurring.causes
    assert found.recurring.other_ns == pytest.approx(15e6, rel=0.1)
    assert max(found.work_gain_ns[0], key=found.work_gain_ns[0].__getitem__) == "forward_pass"


def test_rank_that_alone_saves_makes_the_other_wait() -> None:
    logs = [log(0, extra=every(5, checkpoint=100.0)), log(1, waits=every(5, outside=100.0))]
    found = training_step(logs)
    assert found is not None and found.recurring.causes == ("checkpoint",)
    assert found.recurring.rank_ns("checkpoint").tolist() == [pytest.approx(20e6, rel=0.1), 0.0]
    assert found.recurring.waiting_ns().tolist() == [0.0, pytest.approx(20e6, rel=0.1)]
    assert found.recurring.late_ns()[0] == pytest.approx(20e6, rel=0.1)
    assert found.recurring.with_ranks_like_others([0]).total_ns == 0


def test_pauses_of_ranks_at_different_steps_add_up() -> None:
    collects = every(10, garbage_collection=50.0)

    def one(rank: int) -> StepLog:
        def waits(step: int) -> dict[str, float]:
            return {"gradient_sync": collects(step + 5 * (1 - rank)).get("garbage_collection", 0.0)}

        return log(rank, extra=lambda step: collects(step + 5 * rank), waits=waits)

    logs = [one(rank) for rank in range(2)]
    found = training_step(logs)
    assert found is not None and found.recurring.total_ns == pytest.approx(10e6, rel=0.15)
    assert found.recurring.with_ranks_like_others([0]).total_ns == pytest.approx(5e6, rel=0.2)


def test_steps_that_are_slower_after_the_window_are_said_and_do_not_count_as_ordinary() -> None:
    found = training_step([log(slower_after=1.3)])
    assert found is not None and found.ordinary_ns == pytest.approx(50e6, rel=0.01)
    assert any("before the window" in line and "+2" in line for line in found.notes)
