"""Each strategy is recognised from its traffic, by name where something names it, and mixes are told apart."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, MAIN, RankTrace, built_run
from tests.analyze.jobs import STEP, Job, collective, ddp, fsdp, job_run, tp, training_step

from stepscope.analyze.parallel_strategy import Strategy, strategy_of
from stepscope.run.load import Run


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


def test_all_reduces_in_forward_are_tensor_parallel(tmp_path: Path) -> None:
    found = recognised(tmp_path, tp)
    assert (found.name, found.sure) == ("tp4", "pattern")
    assert {(u.phase, u.count) for u in found.dimensions[0].uses} == {("forward", 4), ("backward", 4)}


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
    assert sharded.members == ((0, 2), (1, 3))
    assert tensor.members == ((0, 1), (2, 3))
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


def test_group_that_the_trace_does_not_say_is_the_one_whose_name_fits(tmp_path: Path) -> None:
    ranks = []
    for rank in range(4):
        groups = {"0": range(4), "1": (rank // 2 * 2, rank // 2 * 2 + 1)}
        names = {"0": "default_pg", "1": "mesh_tp"}
        r = RankTrace(rank, world_size=4, clock_offset_us=rank * 500, backend="gloo", groups=groups, descriptions=names)
        r.step(0, 0, STEP)
        r.ran("aten::mm", 10, 900)
        r.gloo("allreduce", at=800, start=850, end=950)
        r.ran("autograd::engine::evaluate_function: MmBackward0", 1000, 2000)
        r.gloo("allreduce", at=1500, start=1600, end=1900)
        r.annotation("Optimizer.step#SGD.step", 3000, 3500)
        ranks.append(r)
    found = strategy_of(built_run(tmp_path, ranks))
    assert found.name == "tp2"
    assert found.dimensions[0].members == ((0, 1), (2, 3))


def test_routed_tokens_are_expert_parallel_and_equal_amounts_a_guess(tmp_path: Path) -> None:
    def experts(r: RankTrace, at: float, **args: object) -> None:
        for start in (at + 100, at + 600):
            collective(r, "all_to_allv", start, **args)  # type: ignore[arg-type]

    amounts = {"In split size": [1, 1, 1, 1], "Out split size": [1, 1, 1, 1]}
    routed = recognised(tmp_path / "a", lambda r, at: experts(r, at, **amounts))
    assert (routed.name, routed.sure) == ("ep4", "pattern")
    equal = recognised(tmp_path / "b", lambda r, at: experts(r, at))
    assert (equal.name, equal.sure) == ("ep4", "guess")


def test_gloo_without_groups_is_recognised_by_phase(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2, clock_offset_us=rank * 500, backend="gloo")
        r.step(0, 0, STEP)
        r.ran("aten::mm", 10, 900)
        r.ran("autograd::engine::evaluate_function: MmBackward0", 1000, 2000)
        r.gloo("allreduce", at=1900, start=2000, end=2500)
        r.annotation("Optimizer.step#SGD.step", 3000, 3500)
        ranks.append(r)
    assert strategy_of(built_run(tmp_path, ranks)).name == "ddp"


def test_counts_gathered_beside_gradients_of_ddp_are_no_tensor_parallelism(tmp_path: Path) -> None:
    """A trainer gathers how many tokens each replica has before it scales the loss."""

    def job(r: RankTrace, at: float) -> None:
        r.annotation("DistributedDataParallel.forward", at + 10, at + 900)
        collective(r, "_allgather_base", at + 20, elements=500_000, out_elements=1_000_000)
        collective(r, "allreduce", at + 40, elements=300_000)
        ddp(r, at)

    assert recognised(tmp_path, job).name == "ddp"


def test_parameters_averaged_after_the_optimizer_are_local_sgd(tmp_path: Path) -> None:
    def job(r: RankTrace, at: float) -> None:
        for k in range(4):
            collective(r, "allreduce", at + 15 + 50 * k, elements=1_000_000)

    found = recognised(tmp_path, job)
    assert (found.name, found.sure) == ("local-sgd", "pattern")
