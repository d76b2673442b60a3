"""The budget of ranks without a device: the host's operators are the compute."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.budget import RankBudget, budgets, step_budget
from stepscope.analyze.layers import PARTS
from stepscope.run.aligned import aligned
from stepscope.units import NS_PER_MS

MS = 1000


def gloo_rank(rank: int, *, arrives: float) -> RankTrace:
    """Two steps of 20 ms: 3 data, 4 forward, 5 backward, waiting for an all-reduce until 18, 1 optimizer."""
    r = RankTrace(rank, world_size=2, backend="gloo", clock_offset_us=700 * rank)
    for k in range(2):
        t = 20 * MS * k
        r.step(k, t, t + 20 * MS)
        r.annotation("data_loading", t, t + 3 * MS)
        r.ran("aten::stack", t + 1 * MS, t + 2 * MS)
        r.annotation("forward_pass", t + 3 * MS, t + 7 * MS)
        r.ran("aten::mm", t + 3 * MS, t + 5 * MS)
        r.ran("aten::mm", t + 6 * MS, t + 7 * MS)  # python between the two is forward as well
        with r.op("autograd::engine::evaluate_function: MmBackward0", t + 7 * MS, t + 12 * MS):
            r.ran("aten::mm", t + 8 * MS, t + 11 * MS)
        r.gloo("allreduce", at=t + 12 * MS - 10, start=t + arrives, end=t + 17 * MS)
        r.annotation("Optimizer.step#SGD.step", t + 18 * MS, t + 19 * MS)
        r.ran("aten::add_", t + 18 * MS, t + 19 * MS)
    return r


def parts(budget: RankBudget | None) -> list[dict[str, float]]:
    assert budget is not None
    assert (budget.part_ns.sum(axis=1) == budget.periods.dur_ns).all()
    rows = (budget.part_ns / 1e6).round(3).tolist()  # clocks are aligned to a fraction of a microsecond
    return [{p: ms for p, ms in zip(PARTS, row, strict=True) if ms} for row in rows]


def test_parts_of_a_cpu_rank(tmp_path: Path) -> None:
    run = built_run(tmp_path, [gloo_rank(0, arrives=12 * MS), gloo_rank(1, arrives=14 * MS)])
    first, second = budgets(aligned(run))
    base = {"data_loading": 3, "forward": 4, "backward": 5, "optimizer": 1, "exposed_transfer": 3, "other_compute": 2}
    assert parts(first) == [{**base, "wait": 2}] * 2
    assert parts(second) == [{**base, "unknown": 2}] * 2  # after its all-reduce was asked for and before it began


def test_waiting_inside_backward_is_communication(tmp_path: Path) -> None:
    ranks = []
    for n in (0, 1):
        r = RankTrace(n, world_size=2, backend="gloo", clock_offset_us=700 * n)
        r.step(0, 0, 10 * MS)
        with r.op("autograd::engine::evaluate_function: Fsdp", 0, 10 * MS):  # waits for its gather inside the node
            r.gloo("allreduce", at=MS, start=2 * MS, end=6 * MS)
            r.ran("aten::mm", 6 * MS, 10 * MS)
        ranks.append(r)
    first, _ = budgets(aligned(built_run(tmp_path, ranks)))
    assert parts(first) == [{"backward": 6, "exposed_transfer": 4}]


def test_profilers_cost_comes_out_of_the_operators(tmp_path: Path) -> None:
    run = built_run(tmp_path, [gloo_rank(0, arrives=12 * MS), gloo_rank(1, arrives=12 * MS)])
    whole = step_budget(budgets(aligned(run)), unprofiled_ns=17 * NS_PER_MS)
    assert whole is not None
    assert whole.ns("exposed_transfer") == pytest.approx(5e6, rel=1e-3)
    assert whole.ns("data_loading") == 3e6
    assert whole.ns("forward") == 4e6 * 0.75  # 12 ms of operators and python lose 3
