"""The phase of a moment follows from autograd nodes and optimizer ranges alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.analyze.build import AUTOGRAD, MAIN, RankTrace, built_run, true_ns

from stepscope.analyze.phases import Phase, collective_phases, passes, work_phases

F, B, A, O = Phase.FORWARD, Phase.BACKWARD, Phase.AFTER_BACKWARD, Phase.OPTIMIZER  # noqa: E741


def accumulating_step(r: RankTrace, *, engine_thread: int = AUTOGRAD) -> None:
    """Two micro-batches: forward to 100, backward to 300, forward to 400, backward to 600; optimizer 700-800."""
    r.step(0, 0, 1000)
    r.ran("aten::mm", 10, 90)
    for start in (110, 420):
        r.ran("autograd::engine::evaluate_function: MmBackward0", start, start + 60, thread=engine_thread)
        r.ran("autograd::engine::evaluate_function: AddBackward0", start + 90, start + 180, thread=engine_thread)
    r.ran("aten::mm", 310, 390)
    r.annotation("Optimizer.step#AdamW.step", 700, 800)
    r.ran("aten::_foreach_add_", 710, 790)


def phases_at(tmp_path: Path, r: RankTrace, moments: Sequence[float], *, thread: int = MAIN) -> list[int]:
    found = passes(built_run(tmp_path, [r]).ranks[0])
    at = np.array([true_ns(m) for m in moments])
    return found.at(at, np.full(len(at), thread)).tolist()


def test_order_tells_the_phase_without_annotations(tmp_path: Path) -> None:
    r = RankTrace()
    accumulating_step(r)
    moments = [5, 50, 150, 185, 250, 350, 450, 650, 750, 900]
    assert phases_at(tmp_path, r, moments) == [F, F, B, B, B, F, B, A, O, F]


def test_backward_on_the_main_thread_is_told_apart_too(tmp_path: Path) -> None:
    r = RankTrace(backend="gloo")
    accumulating_step(r, engine_thread=MAIN)
    assert phases_at(tmp_path, r, [50, 150, 185, 350, 450, 650, 750]) == [F, B, B, F, B, A, O]


def test_closure_inside_the_optimizer_keeps_its_phases(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 1000)
    r.annotation("Optimizer.step#LBFGS.step", 0, 900)
    r.ran("aten::mm", 10, 100)
    r.backward("MmBackward0", 200, 400)
    r.ran("aten::add_", 500, 600)
    assert phases_at(tmp_path, r, [50, 300, 550]) == [F, B, O]


def test_work_and_collectives_take_the_phase_of_their_launch(tmp_path: Path) -> None:
    r = RankTrace(world_size=2)
    accumulating_step(r)
    r.kernel("forward_gemm", at=20, start=500, end=600)  # runs late, belongs to forward
    r.kernel("older", at=None, start=0, end=5)
    r.collective("allreduce", at=440, start=700, end=800)
    r.collective("allreduce", at=None, start=10, end=20)
    rank = built_run(tmp_path, [r]).ranks[0]
    found = passes(rank)
    by_name = dict(zip(rank.work.start_ns.tolist(), work_phases(rank, found).tolist(), strict=True))
    assert by_name == {true_ns(500): F, true_ns(0): Phase.UNKNOWN, true_ns(700): B, true_ns(10): Phase.UNKNOWN}
    assert sorted(collective_phases(rank, found).tolist()) == [Phase.UNKNOWN, B]
