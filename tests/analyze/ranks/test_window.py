"""A rank's window, overlap and collectives: equal to a plain account, and to the truth where it is constructed."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.analyze.build import RankTrace, built_run
from tests.analyze.plain_account import plain_account
from tests.not_none import not_none
from tests.run.traces import event, rank_of

from stepscope.analyze.collective_costs import (
    RankAccount,
    collective_rows,
    overlap_efficiency,
    rank_account,
    rank_overlap,
    rank_wait,
)
from stepscope.records import Row
from stepscope.run.aligned import AlignedRun, aligned
from stepscope.run.load import load

DATA = Path(__file__).parents[2] / "data"
RECORDED = sorted(DATA.glob("h200-*/rank0.json.gz"))


def totals(account: RankAccount | None) -> dict[str, int]:
    assert account is not None
    return {
        "window": account.window_ns, "compute": account.compute.total_ns, "comm": account.comm.total_ns,
        "memory": account.memory.total_ns if account.memory is not None else 0,
        "exposed": account.exposed_comm.total_ns, "hidden": account.hidden_comm_ns, "idle": account.idle_ns,
    }  # fmt: skip


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.parent.name)
def test_recorded_trace_equals_the_plain_account(path: Path) -> None:
    assert totals(rank_account(load(path, cache=False).ranks[0])) == plain_account(path)


SPAN = st.tuples(st.integers(-50, 300), st.integers(0, 80))
KINDS = ("gemm", "ncclDevKernel_AllGather_RING_LL", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)")
CATEGORY = ("kernel", "kernel", "gpu_memcpy", "gpu_memset")


@pytest.mark.slow
@given(st.lists(st.tuples(SPAN, st.integers(0, 3), st.integers(1, 3)), max_size=25), st.booleans())
def test_any_device_work_equals_the_plain_account(tmp_path_factory, work, with_steps):
    """Overlapping on one stream, out of order, empty, before and after the window: parts never exceed the wall."""
    events = [event(CATEGORY[kind], KINDS[kind], start, dur, tid=stream) for (start, dur), kind, stream in work]
    if with_steps:
        events += [event("user_annotation", f"ProfilerStep#{k}", 100 * k, 90) for k in range(2)]
    folder = tmp_path_factory.mktemp("t")
    account = rank_account(rank_of(folder, events)) if events else None
    if not events:
        return
    found = totals(account)
    assert found == plain_account(folder / "trace.json")
    assert 0 <= found["idle"] <= found["window"]
    assert found["exposed"] + found["hidden"] <= found["comm"] <= found["window"]
    assert found["compute"] + found["exposed"] + found["idle"] <= found["window"]


def test_worked_example(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 1000)
    trace.kernel("gemm", at=10, start=100, end=500)
    trace.collective("allreduce", at=20, start=400, end=700)
    trace.copy(start=650, end=800, at=30)
    trace.kernel("gemm", at=40, start=1100, end=1200)
    account = not_none(rank_account(built_run(tmp_path, [trace]).ranks[0]))
    assert {name: ns // 1000 for name, ns in totals(account).items()} == {
        "window": 1200, "compute": 500, "comm": 300, "memory": 150, "exposed": 150, "hidden": 100, "idle": 400,
    }  # fmt: skip
    assert account.overlap_pct == pytest.approx(100 / 3)
    assert account.overlap_efficiency == pytest.approx(1 / 3)
    assert account.warnings == ()


def test_an_operator_around_a_collectives_call_does_not_hide_it(tmp_path: Path) -> None:
    r = RankTrace(backend="gloo")
    r.step(0, 0, 1000)
    r.ran("ReduceFromTensorParallel", 100, 800)  # waits for the collective that it asks for
    r.ran("aten::mm", 110, 190)
    r.gloo("allreduce", at=200, start=210, end=790)
    found = not_none(rank_account(built_run(tmp_path, [r]).ranks[0]))
    assert found.compute.total_ns == 80_000
    assert found.exposed_comm.total_ns == found.comm.total_ns == 580_000
    assert found.overlap_pct == 0


def overlapping(rank: int, *, comm: tuple[float, float]) -> RankTrace:
    """Two steps of 1000 with 400 of compute from 0 and a copy from 700 to 800."""
    r = RankTrace(rank, world_size=2)
    r.kernel("older", at=None, start=-60, end=0)
    for k in range(2):
        t = 1000 * k
        r.step(k, t - 50, t + 950)
        r.kernel("compute", at=t - 40, start=t, end=t + 400)
        r.copy(at=t - 39, start=t + 700, end=t + 800)
        r.collective("allreduce", at=t - 30, start=t + comm[0], end=t + comm[1])
        r.kernel("last", at=t - 20, start=t + 990, end=t + 1000)
    return r


def test_compute_comm_together_hidden_and_exposed_per_step(tmp_path: Path) -> None:
    ranks = built_run(tmp_path, [overlapping(0, comm=(300, 900)), overlapping(1, comm=(500, 600))]).ranks
    first, second = (rank_overlap(r) for r in ranks)
    assert first is not None and second is not None
    assert (first.compute_ns // 1000).tolist() == [410, 410]
    assert (first.comm_ns // 1000).tolist() == [600, 600]
    assert (first.together_ns // 1000).tolist() == [100, 100]
    assert (first.exposed_ns // 1000).tolist() == [400, 400]
    assert overlap_efficiency([first]) == pytest.approx(100 / 410)
    assert overlap_efficiency([second]) == 0
    assert overlap_efficiency([first, second, None]) == pytest.approx(100 / (410 + 100))


def shared_of(folder: Path, traces: list[RankTrace]) -> tuple[AlignedRun, tuple[RankAccount | None, ...]]:
    shared = aligned(built_run(folder, traces))
    return shared, tuple(rank_account(r) for r in shared.run.ranks)


def rows_of(folder: Path, traces: list[RankTrace]) -> list[Row]:
    return collective_rows(*shared_of(folder, traces))


def job(ranks: int = 2, *, late: int = 1, elements: int = 250_000, calls: int = 4) -> list[RankTrace]:
    """Return ranks that all-reduce 1 MB in 100 us, one of them 300 us late each time."""
    traces = [RankTrace(r, world_size=ranks) for r in range(ranks)]
    for trace in traces:
        trace.step(0, 0, 1000 * calls)
        for k in range(calls):
            start = 1000 * k + (400 if trace.rank == late else 100)
            trace.collective("allreduce", at=1000 * k + 50, start=start, end=1000 * k + 500, elements=elements)
    return traces


def test_row_has_count_bytes_wait_transfer_and_bandwidth(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, job())
    assert (row.op, row.group.name, row.count, row.size_bytes) == ("all_reduce", "default_pg", 4, 4_000_000)
    assert row.wait_ns == 4 * 300_000 / 2, "mean over the ranks: one waits, the other does not"
    assert row.transfer_ns == 4 * 100_000
    assert row.exposed_ns == 4 * (400_000 + 100_000) / 2
    assert row.algbw_gb_per_s == pytest.approx(1_000_000 / 100_000)
    assert row.busbw_gb_per_s == pytest.approx(10)
    assert row.late_rank == 1
    assert row.unmatched == 0


def test_late_rank_is_not_named_within_the_clocks_doubt(tmp_path: Path) -> None:
    traces = job(3, late=2)
    for one in traces[2].events:
        if one["cat"] == "kernel":  # now 10 us late, and the transfer takes 400
            one["ts"] -= 290
            one["dur"] += 290
    (row,) = rows_of(tmp_path, traces)
    assert row.late_rank is None


def test_one_row_for_a_mesh_dimension_of_many_groups(tmp_path: Path) -> None:
    traces = []
    for rank in range(4):
        groups = {"dp": (0, 2) if rank % 2 == 0 else (1, 3), "tp": (0, 1) if rank < 2 else (2, 3)}
        trace = RankTrace(rank, world_size=4, groups=groups, descriptions={"dp": "mesh_dp", "tp": "mesh_tp"})
        trace.step(0, 0, 2000)
        trace.collective("allreduce", at=10, start=100, end=300, group="tp", elements=100)
        trace.collective("_allgather_base", at=400, start=500, end=900, group="dp", elements=100, out_elements=200)
        traces.append(trace)
    rows = rows_of(tmp_path, traces)
    assert [(r.op, r.group.name, r.count, r.size_bytes, r.group.size) for r in rows] == [
        ("all_gather", "mesh_dp", 1, 800, 2),
        ("all_reduce", "mesh_tp", 1, 400, 2),
    ]


def test_unmatched_operations_are_neither_wait_nor_transfer(tmp_path: Path) -> None:
    shared, accounts = shared_of(tmp_path, job()[:1])
    (row,) = collective_rows(shared, accounts)
    assert (row.wait_ns, row.transfer_ns, row.unmatched, row.late_rank) == (None, None, 4, None)
    assert accounts[0] is not None
    wait = rank_wait(shared, 0, accounts[0])
    assert (wait.wait_ns, wait.transfer_ns, wait.unmatched_comm_ns) == (None, None, 4 * 400_000)
