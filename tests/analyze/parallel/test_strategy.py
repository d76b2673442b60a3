"""Strategies from traffic: by name where something names them, mixes told apart; stages and bubble of pipelines."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, MAIN, RankTrace, built_run
from tests.analyze.jobs import Job, collective, ddp, fsdp, job_run, tp, training_step
from tests.analyze.pipelines import gpipe, interleaved, one_f_one_b, pipeline_run
from tests.not_none import not_none

from stepscope.analyze.collective_costs import rank_account
from stepscope.analyze.parallel_strategy import Strategy, strategy_of
from stepscope.analyze.pipeline import Action, pipeline_view, replayed, schedule_name
from stepscope.document.rows import ms_or_none
from stepscope.records import Row
from stepscope.run.aligned import aligned
from stepscope.run.load import Run
from stepscope.units import ms


def recognised(tmp_path: Path, job: Job, **given: object) -> Strategy:
    return strategy_of(job_run(tmp_path, job, **given))  # type: ignore[arg-type]


def test_ranks_without_communication_are_unknown_with_a_reason(tmp_path: Path) -> None:
    found = recognised(tmp_path, lambda r, at: None)
    assert found.name == "unknown"
    assert "no communication" in found.notes[0]


def test_all_reduces_in_backward_are_ddp_and_a_loss_average_is_small(tmp_path: Path) -> None:
    found = recognised(tmp_path, ddp)
    assert (found.name, found.sure) == ("ddp", "pattern")
    (use,) = found.dimensions[0].uses
    assert (use.op, use.phase, use.count, use.size_bytes) == ("all_reduce", "backward", 3, 9_000_000)
    assert [d.kind for d in found.other] == ["small"]
    assert all(len(rows["ddp"]) == 6 and len(rows["small"]) == 2 for rows in found.rows)


@pytest.mark.parametrize(("said", "agrees"), [("ddp", True), ("fsdp2+tp", False)])
def test_what_the_job_says_is_noted_where_its_traffic_differs(tmp_path: Path, said: str, agrees: bool) -> None:
    run = job_run(tmp_path, ddp)
    found = strategy_of(Run(run.name, run.ranks, {"strategy": said}))
    assert found.name == "ddp"
    assert any(said in note for note in found.notes) != agrees


@pytest.mark.parametrize(("again", "name"), [(True, "fsdp-zero3"), (False, "fsdp-zero2")])
def test_gathers_in_backward_tell_zero3_from_zero2(tmp_path: Path, again: bool, name: str) -> None:
    found = recognised(tmp_path, lambda r, at: fsdp(r, at, again=again))
    assert (found.name, found.sure) == (name, "pattern")


def test_gradients_to_owners_and_parameters_back_are_a_sharded_optimizer(tmp_path: Path) -> None:
    def zero(r: RankTrace, at: float, reduce: str) -> None:
        collective(r, reduce, at + 1700, thread=AUTOGRAD, elements=4_000_000)
        for k in range(4):
            collective(r, "broadcast", at + 3920 + 10 * k, elements=1_000_000)

    assert recognised(tmp_path / "a", lambda r, at: zero(r, at, "allreduce"), ranks=4).name == "zero1"
    found = recognised(tmp_path / "b", lambda r, at: zero(r, at, "_reduce_scatter_base"), ranks=4)
    assert found.name == "zero2"
    assert found.dimensions[0].instead == ("zero1",)


def test_scatters_in_forward_are_sequence_parallel_and_not_fsdp(tmp_path: Path) -> None:
    def job(r: RankTrace, at: float) -> None:
        for start, thread in ((at + 15, 100), (at + 1100, AUTOGRAD)):
            for k in range(2):
                collective(r, "_allgather_base", start + 400 * k, thread=thread, out_elements=4_000_000)
                collective(
                    r, "_reduce_scatter_base", start + 200 + 400 * k, thread=thread,
                    elements=4_000_000, out_elements=1_000_000,
                )  # fmt: skip

    assert recognised(tmp_path, job).name == "tp4"


@pytest.mark.parametrize(("named", "sure"), [(True, "stated"), (False, "pattern")])
def test_mesh_of_fsdp_and_tensor_parallel(tmp_path: Path, named: bool, sure: str) -> None:
    ranks = []
    for rank in range(4):
        groups = {"dp": (rank % 2, rank % 2 + 2), "tp": (rank // 2 * 2, rank // 2 * 2 + 1)}
        said = {"dp": "mesh_dp", "tp": "mesh_tp"} if named else {"dp": "a", "tp": "b"}
        renamed = {"dp": "1", "tp": "2"}
        r = RankTrace(
            rank,
            world_size=4,
            clock_offset_us=rank * 500,
            groups={renamed[k]: v for k, v in groups.items()},
            descriptions={renamed[k]: v for k, v in said.items()},
        )
        training_step(r, 0)
        fsdp(r, 0, group="1")
        tp(r, 0, group="2")
        ranks.append(r)
    found = strategy_of(built_run(tmp_path, ranks))
    assert (found.name, found.sure) == ("fsdp-zero3 x tp2", sure)
    sharded, tensor = found.dimensions
    assert sharded.members == [(0, 2), (1, 3)]
    assert tensor.members == [(0, 1), (2, 3)]
    gathered = next(u for u in sharded.uses if u.op == "all_gather" and u.phase == "forward")
    assert (gathered.count, gathered.size_bytes) == (2, 16_000_000)


def test_messages_both_ways_are_a_pipeline(tmp_path: Path) -> None:
    def stage(r: RankTrace, at: float) -> None:
        down, up = r.rank + 1, r.rank - 1
        if r.rank > 0:
            r.messages(("recv", up), at=at + 5, start=at + 10, end=at + 50)
        if r.rank < 3:
            r.messages(("send", down), at=at + 900, start=at + 1100, end=at + 1200)
            r.messages(("recv", down), at=at + 950, start=at + 1200, end=at + 1300)
        if r.rank > 0:
            r.messages(("send", up), at=at + 3100, start=at + 3200, end=at + 3300)

    found = recognised(tmp_path, stage)
    assert (found.name, found.sure) == ("pp4", "pattern")


def test_messages_around_a_ring_are_context_parallel(tmp_path: Path) -> None:
    def ring(r: RankTrace, at: float) -> None:
        for k in range(3):
            pair = (("send", (r.rank + 1) % 4), ("recv", (r.rank - 1) % 4))
            r.messages(*pair, at=at + 30 + 250 * k, start=at + 240 + 250 * k, end=at + 300 + 250 * k)

    found = recognised(tmp_path, ring)
    assert (found.name, found.sure) == ("cp4", "pattern")


def test_messages_in_the_middle_of_backward_are_no_pipeline(tmp_path: Path) -> None:
    def ring(r: RankTrace, at: float) -> None:
        for start, thread in ((at + 30, MAIN), (at + 1100, AUTOGRAD)):
            pair = (("send", 1 - r.rank), ("recv", 1 - r.rank))
            r.messages(*pair, at=start, start=start + 200, end=start + 300, thread=thread)

    found = recognised(tmp_path, ring, ranks=2)
    assert (found.name, found.sure) == ("cp2", "pattern")


def test_routed_tokens_are_expert_parallel_and_equal_amounts_a_guess(tmp_path: Path) -> None:
    def experts(r: RankTrace, at: float, **args: object) -> None:
        for start in (at + 100, at + 600):
            collective(r, "all_to_allv", start, **args)  # type: ignore[arg-type]

    amounts = {"In split size": [1, 1, 1, 1], "Out split size": [1, 1, 1, 1]}
    routed = recognised(tmp_path / "a", lambda r, at: experts(r, at, **amounts))
    assert (routed.name, routed.sure) == ("ep4", "pattern")
    equal = recognised(tmp_path / "b", lambda r, at: experts(r, at))
    assert (equal.name, equal.sure) == ("ep4", "guess")


def test_parameters_averaged_after_the_optimizer_are_local_sgd(tmp_path: Path) -> None:
    def job(r: RankTrace, at: float) -> None:
        for k in range(4):
            collective(r, "allreduce", at + 15 + 50 * k, elements=1_000_000)

    found = recognised(tmp_path, job)
    assert (found.name, found.sure) == ("local-sgd", "pattern")


def view_of(run: Run) -> Row:
    return not_none(pipeline_view(aligned(run), strategy_of(run), [rank_account(r) for r in run.ranks]))


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
    found = not_none(replayed(made, durations))
    assert schedule_name(made, chunks=1) == "zero-bubble"
    assert found.mean_idle_share == pytest.approx((stages - 1) / (3 * microbatches + stages - 1), abs=0.03)
