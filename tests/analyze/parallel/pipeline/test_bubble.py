"""Stages, micro-batches, schedule and bubble of constructed pipelines are recovered."""

from pathlib import Path

import pytest
from tests.analyze.pipelines import gpipe, interleaved, one_f_one_b, pipeline_run

from stepscope.analyze.parallel_strategy import strategy_of
from stepscope.analyze.pipeline import (
    Action,
    PipelineView,
    pipeline_view,
    replayed,
    schedule_name,
)
from stepscope.analyze.rank_windows import rank_account
from stepscope.document.values import ms_or_none
from stepscope.run.aligned import aligned
from stepscope.run.load import Run
from stepscope.units import ms


def view_of(run: Run) -> PipelineView:
    found = pipeline_view(aligned(run), strategy_of(run), [rank_account(r) for r in run.ranks])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("orders", "schedule"), [(gpipe(4, 4), "gpipe"), (one_f_one_b(4, 8), "1f1b"), (one_f_one_b(2, 3), "1f1b")]
)
@pytest.mark.parametrize("marked", [False, True])
def test_schedule_and_bubble_are_recovered(tmp_path: Path, orders: list, schedule: str, marked: bool) -> None:
    stages, microbatches = len(orders), sum(kind == "F" for kind, _, _ in orders[0])
    found = view_of(pipeline_run(tmp_path, orders, marked=marked))
    ideal = 100 * (stages - 1) / (microbatches + stages - 1)
    assert (found.stages, found.microbatches, found.chunks, found.schedule) == (stages, microbatches, 1, schedule)
    assert found.marked == marked
    assert found.textbook_pct == pytest.approx(ideal)
    assert found.schedule_pct == pytest.approx(ideal)
    assert found.bubble_pct == pytest.approx(ideal, abs=1.5)  # messages take a little
    assert found.imbalance == pytest.approx(1)
    for r in found.ranks:
        assert ms(r.forward_ns) == pytest.approx(0.2 * microbatches)
        assert ms(r.backward_ns) == pytest.approx(0.4 * microbatches)
        assert ms_or_none(r.forward_microbatch_ns) == pytest.approx(0.2)
        parts = (r.forward_ns, r.backward_ns, r.other_ns, r.transfer_ns, r.wait_ns, r.gaps_ns, r.idle_ns)
        assert sum(parts) == pytest.approx(r.step_ns)


@pytest.mark.parametrize("marked", [False, True])
def test_chunks_of_an_interleaved_pipeline_are_counted(tmp_path: Path, marked: bool) -> None:
    found = view_of(pipeline_run(tmp_path, interleaved(4, 4, 2), marked=marked))
    assert (found.stages, found.microbatches, found.chunks) == (4, 4, 2)
    assert found.schedule == "interleaved-gpipe"
    assert found.textbook_pct == pytest.approx(100 * 3 / (4 * 2 + 3))
    assert found.bubble_pct == pytest.approx(found.textbook_pct, abs=1.5)
    if marked:
        assert found.schedule_pct == pytest.approx(found.textbook_pct)


def test_work_between_backwards_that_builds_no_graph_is_no_micro_batch(tmp_path: Path) -> None:
    found = view_of(pipeline_run(tmp_path, interleaved(4, 4, 2), scaled=True))
    assert (found.microbatches, found.chunks, found.schedule) == (4, 2, "interleaved-gpipe")


def test_missing_rank_leaves_the_schedule_unknown_and_says_so(tmp_path: Path) -> None:
    run = pipeline_run(tmp_path, one_f_one_b(4, 4))
    part = Run(run.name, run.ranks[:3])
    found = view_of(part)
    assert found.schedule is None
    assert found.schedule_pct is None
    assert "not all ranks" in found.notes[0]
    assert (found.stages, found.microbatches) == (4, 4)


def actions(orders: list, durations: dict[str, float]) -> tuple[list[list[Action]], list[list[float]]]:
    made = [[Action(kind, stage, i, 0, 0, 0, 0) for kind, stage, i in order] for order in orders]
    return made, [[durations[a.kind] for a in order] for order in made]


def test_splitting_the_backward_shrinks_the_bubble() -> None:
    """Weights' gradients fill what input gradients leave: ZB-H1 with F = I = W idles (p - 1) of 3 m + p - 1."""
    stages, microbatches = 4, 8
    orders = []
    for s in range(stages):
        order = []
        for kind, _, i in one_f_one_b(stages, microbatches)[s]:
            order.append((("I" if kind == "B" else "F"), s, i))
            if kind == "B" and i >= s:
                order.append(("W", s, i - s))
        order += [("W", s, i) for i in range(microbatches - s, microbatches)]
        orders.append(order)
    made, durations = actions(orders, {"F": 1, "I": 1, "W": 1})
    found = replayed(made, durations)
    assert found is not None
    assert schedule_name(made, chunks=1) == "zero-bubble"
    assert found.mean_idle_share == pytest.approx((stages - 1) / (3 * microbatches + stages - 1), abs=0.03)
