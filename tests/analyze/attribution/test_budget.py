"""Steps with a planted share of every part, and the shares found again, with and without a device and the profiler."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.step_logs import log_lines, write_log
from tests.not_none import not_none

from stepscope.analyze.budget import PARTS, RankBudget, beyond_window, budgets, step_budget
from stepscope.analyze.training_step import training_step
from stepscope.run.aligned import aligned
from stepscope.units import NS_PER_MS, ns_of_ms

STEP = 2000
NUM_STEPS = 3


def training(r: RankTrace) -> RankTrace:
    """Add steps of 2000: 300 forward, 400 backward, 100 optimizer, all launched ahead; idle from 800 on."""
    r.kernel("older", at=None, start=-100, end=0)
    for k in range(NUM_STEPS):
        t = STEP * k
        r.step(k, t - 100, t + STEP - 100)
        with r.op("aten::mm", t - 90, t - 80):
            r.kernel("forward", at=t - 88, start=t, end=t + 300)
        with r.op("autograd::engine::evaluate_function: MmBackward0", t - 70, t - 50, thread=AUTOGRAD):
            r.kernel("backward", at=t - 60, start=t + 300, end=t + 700, thread=AUTOGRAD)
        r.annotation("Optimizer.step#SGD.step", t - 40, t - 30)
        r.kernel("optimizer", at=t - 38, start=t + 700, end=t + 800)
        r.kernel("mark", at=t - 20, start=t + STEP - 1, end=t + STEP)  # ends the step
    return r


def parts(budget: RankBudget | None, *, unit_ns: int = 1000) -> list[dict[str, float]]:
    """Return the time of each step by part; clocks are aligned to a fraction of a microsecond."""
    assert budget is not None
    assert (budget.part_ns.sum(axis=1) == budget.periods.dur_ns).all()
    rows = (budget.part_ns / unit_ns).round(3).tolist()
    return [{part: us for part, us in zip(PARTS, row, strict=True) if us} for row in rows]


def found(tmp_path: Path, *ranks: RankTrace) -> tuple[RankBudget | None, ...]:
    return budgets(aligned(built_run(tmp_path, ranks)))


BASE = {"forward": 300, "backward": 400, "optimizer": 100, "other_compute": 1, "unknown": 1199}


def test_compute_goes_by_region_and_the_rest_is_idle(tmp_path: Path) -> None:
    (budget,) = found(tmp_path, training(RankTrace()))
    assert parts(budget) == [BASE] * NUM_STEPS


def test_copies_to_the_device_count_and_those_on_it_are_compute(tmp_path: Path) -> None:
    r = training(RankTrace())
    for t in range(0, NUM_STEPS * STEP, STEP):
        r.copy(at=t - 95, start=t + 250, end=t + 1000, stream=9)  # 200 of it not under compute
        r.copy("DtoD (Device -> Device)", at=t - 94, start=t + 1100, end=t + 1150, stream=9)
    (budget,) = found(tmp_path, r)
    expected = {**BASE, "forward": 350, "copy": 200, "unknown": 1199 - 250}
    assert parts(budget) == [expected] * NUM_STEPS


def test_waiting_and_transfer_of_a_collective(tmp_path: Path) -> None:
    ranks = [training(RankTrace(n, world_size=2, clock_offset_us=5000 * n)) for n in (0, 1)]
    for t in range(0, NUM_STEPS * STEP, STEP):
        # Rank 1 arrives at 1000, both end at 1300; rank 0 hides 200 of its 400 of waiting behind compute.
        ranks[0].collective("allreduce", at=t - 55, start=t + 600, end=t + 1300)
        ranks[1].collective("allreduce", at=t - 55, start=t + 1000, end=t + 1300)
    first, second = found(tmp_path, *ranks)
    for step in parts(first):  # clocks are aligned to a fraction of a microsecond, not exactly
        assert step == pytest.approx({**BASE, "wait": 200, "exposed_transfer": 300, "unknown": 699}, abs=1)
    assert parts(second) == [{**BASE, "exposed_transfer": 300, "unknown": 899}] * NUM_STEPS


def test_communication_that_nobody_matches_is_unknown(tmp_path: Path) -> None:
    r = training(RankTrace(0, world_size=2))
    for t in range(0, NUM_STEPS * STEP, STEP):
        r.collective("allreduce", at=t - 55, start=t + 600, end=t + 1300)
    (budget,) = found(tmp_path, r)
    assert parts(budget) == [BASE] * NUM_STEPS
    assert budget is not None and budget.unmatched_comm_ns.tolist() == [500_000] * NUM_STEPS
    whole = step_budget([budget])
    assert whole is not None and any("match no other rank" in line for line in whole.warnings)


def test_waiting_between_stages_is_pipeline_bubble(tmp_path: Path) -> None:
    ranks = [training(RankTrace(n, world_size=2)) for n in (0, 1)]
    for t in range(0, NUM_STEPS * STEP, STEP):
        ranks[0].collective("send", at=t - 55, start=t + 1400, end=t + 1500, peer=1, thread=100)
        ranks[1].collective("recv", at=t - 55, start=t + 900, end=t + 1500, peer=0, thread=100)
    first, second = found(tmp_path, *ranks)
    assert parts(first) == [{**BASE, "exposed_transfer": 100, "unknown": 1099}] * NUM_STEPS
    assert parts(second) == [{**BASE, "pipeline_bubble": 500, "exposed_transfer": 100, "unknown": 599}] * NUM_STEPS


PLANTED = {
    "data_loading": lambda r, t: r.annotation("data_loading", t + 700, t + 1100),
    "host_sync": lambda r, t: r.call("cudaStreamSynchronize", t + 700, t + 1100),
    "allocator": lambda r, t: r.call("cudaMalloc", t + 700, t + 1100),
    "host_stall": lambda r, t: r.annotation("gc", t + 700, t + 1100),
    "launch_gap": lambda r, t: r.ran("aten::linear", t + 700, t + 1100),
}


@pytest.mark.parametrize("part", PLANTED)
def test_idle_time_goes_to_its_cause(tmp_path: Path, part: str) -> None:
    r = training(RankTrace())
    for t in range(0, NUM_STEPS * STEP, STEP):
        PLANTED[part](r, t)
        r.kernel("late", at=t + 1100, start=t + 1110, end=t + 1200)  # idle from 800 to 1110
    (budget,) = found(tmp_path, r)
    expected = {**BASE, "other_compute": 91, part: 310, "unknown": 1199 - 310 - 90}
    assert parts(budget) == [expected] * NUM_STEPS


def test_window_without_steps_is_one_period(tmp_path: Path) -> None:
    r = RankTrace()
    with r.op("aten::mm", 0, 10):
        r.kernel("k", at=5, start=20, end=120)
    r.ran("aten::add", 100, 190)
    r.kernel("k", at=191, start=200, end=300)
    (budget,) = found(tmp_path, r)
    assert parts(budget) == [{"forward": 200, "launch_gap": 80}]


times = st.integers(0, 8000)
spans = st.tuples(times, st.integers(0, 900))
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "orphan", "copy", "allreduce", "call", "op", "range", "node"]),
        spans,
        times,
        st.integers(0, 3),
    ),
    max_size=40,
)
NAMES = ["cudaMalloc", "cudaStreamSynchronize", "data_loading", "Optimizer.step#SGD.step"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(events=st.lists(EVENTS, min_size=1, max_size=2), steps=st.integers(0, 4), unprofiled=st.floats(0.05, 20))
def test_parts_sum_to_the_period_whatever_the_trace_holds(events: list, steps: int, unprofiled: float) -> None:
    ranks = [random_rank(n, len(events), some, steps) for n, some in enumerate(events)]
    with TemporaryDirectory() as folder:
        run = built_run(Path(folder), ranks)
        every = budgets(aligned(run))
    for budget in every:
        if budget is not None:
            assert (budget.part_ns >= 0).all()
            assert (budget.part_ns.sum(axis=1) == budget.periods.dur_ns).all()
    for given_ms in (None, unprofiled):
        whole = step_budget(every, unprofiled_ns=ns_of_ms(given_ms))
        if whole is not None:
            assert sum(p.ns_per_step for p in whole.parts) == pytest.approx(whole.step_ns)
            assert sum(p.pct for p in whole.parts) == pytest.approx(100)
            assert all(p.ns_per_step >= 0 for p in whole.parts)
            assert np.isfinite(whole.rank_part_ns).all()


def random_rank(rank: int, world: int, events: list, steps: int) -> RankTrace:
    """A rank with any mix of events, overlapping as they like."""
    r = RankTrace(rank, world_size=world)
    for k in range(steps):
        r.step(k, 2000 * k, 2000 * k + 1990)
    for kind, (start, length), at, which in events:
        end, thread = start + length, (100, 200, 100, 300)[which]
        if kind in ("kernel", "orphan"):
            r.kernel(kind, at=at if kind == "kernel" else None, start=start, end=end, stream=7 + which, thread=thread)
        elif kind == "copy":
            r.copy(at=at, start=start, end=end, call_us=which * 40)
        elif kind == "allreduce":
            r.collective("allreduce", at=at, start=start, end=end, elements=which + 1)
        elif kind == "call":
            r.call(NAMES[which % 2], start, end, thread=thread)
        elif kind == "op":
            r.ran("aten::mm", start, end, thread=thread, **{"Sequence number": 1, "Fwd thread id": which % 2})
        elif kind == "range":
            r.annotation(NAMES[2 + which % 2], start, end)
        else:
            r.backward("MmBackward0", start, end)
    return r


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


def test_parts_of_a_cpu_rank(tmp_path: Path) -> None:
    run = built_run(tmp_path, [gloo_rank(0, arrives=12 * MS), gloo_rank(1, arrives=14 * MS)])
    first, second = budgets(aligned(run))
    base = {"data_loading": 3, "forward": 4, "backward": 5, "optimizer": 1, "exposed_transfer": 3, "other_compute": 2}
    assert parts(first, unit_ns=NS_PER_MS) == [{**base, "wait": 2}] * 2
    assert (
        parts(second, unit_ns=NS_PER_MS) == [{**base, "unknown": 2}] * 2
    )  # after its all-reduce was asked for and before it began


def test_profilers_cost_comes_out_of_the_operators(tmp_path: Path) -> None:
    run = built_run(tmp_path, [gloo_rank(0, arrives=12 * MS), gloo_rank(1, arrives=12 * MS)])
    whole = not_none(step_budget(budgets(aligned(run)), unprofiled_ns=17 * NS_PER_MS))
    assert whole.ns("exposed_transfer") == pytest.approx(5e6, rel=1e-3)
    assert whole.ns("data_loading") == 3e6
    assert whole.ns("forward") == 4e6 * 0.75  # 12 ms of operators and python lose 3


WINDOW = {20: 8, 21: 10, 22: 13, 23: 14, 24: 10, 25: 9, 26: 12}
"""ms by step; forward takes all but 2"""
USUAL_MS = (16, 20, 24)
"""in turn: a busy machine"""


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
    times_ms = (WINDOW.get(step, USUAL_MS[step % 3]) for step in range(40))
    lines = log_lines(({"forward_pass": ms - 2, "optimizer_step": 2} for ms in times_ms), window=range(20, 27))
    write_log(tmp_path, 0, lines, ranks=1)
    run = built_run(tmp_path, [r], description={"schema": 1, "world_size": 1})
    (budget,) = budgets(aligned(run))
    training = training_step(run.logs)
    assert budget is not None and training is not None
    beyond = beyond_window(training, run.ranks, [budget.periods], [False])
    whole = not_none(step_budget([budget], unprofiled_ns=round(training.ordinary_ns), beyond=beyond))
    assert whole.ns("forward") + whole.ns("optimizer") == pytest.approx(whole.step_ns, rel=0.01)
    assert whole.ns("unknown") == pytest.approx(0, abs=0.01 * whole.step_ns)
