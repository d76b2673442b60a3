"""The account of a rank's window: equal to a plain one on recorded traces, and to the truth on constructed ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analyze.build import RankTrace, built_run
from tests.analyze.plain_account import plain_account
from tests.run.traces import event, rank_of

from stepscope.analyze.rank_windows import RankAccount, rank_account
from stepscope.run.load import load

DATA = Path(__file__).parents[2] / "data"
RECORDED = sorted(DATA.glob("h200-*/rank0.json.gz"))


def totals(account: RankAccount | None) -> dict[str, int]:
    assert account is not None
    return {
        "window": account.window_ns,
        "compute": account.compute.total_ns,
        "comm": account.comm.total_ns,
        "memory": account.memory.total_ns if account.memory is not None else 0,
        "exposed": account.exposed_comm.total_ns,
        "hidden": account.hidden_comm_ns,
        "idle": account.idle_ns,
    }


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.parent.name)
def test_recorded_trace_equals_the_plain_account(path: Path) -> None:
    assert totals(rank_account(load(path, cache=False).ranks[0])) == plain_account(path)


SPAN = st.tuples(st.integers(-50, 300), st.integers(0, 80))
KINDS = ("gemm", "ncclDevKernel_AllGather_RING_LL", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)")
CATEGORY = ("kernel", "kernel", "gpu_memcpy", "gpu_memset")


@given(st.lists(st.tuples(SPAN, st.integers(0, 3), st.integers(1, 3)), max_size=25), st.booleans())
def test_any_device_work_equals_the_plain_account(
    tmp_path_factory: pytest.TempPathFactory, work: list[tuple[tuple[int, int], int, int]], with_steps: bool
) -> None:
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
    account = rank_account(built_run(tmp_path, [trace]).ranks[0])
    assert account is not None
    assert {name: ns // 1000 for name, ns in totals(account).items()} == {
        "window": 1200,
        "compute": 500,
        "comm": 300,
        "memory": 150,
        "exposed": 150,
        "hidden": 100,
        "idle": 400,
    }
    assert account.overlap_pct == pytest.approx(100 / 3)
    assert account.overlap_efficiency == pytest.approx(1 / 3)
    assert account.warnings == ()


def test_window_without_steps_is_the_span_of_the_device_and_says_so(tmp_path: Path) -> None:
    account = rank_account(rank_of(tmp_path, [event("kernel", "gemm", 50, 10), event("kernel", "gemm", 90, 10)]))
    assert account is not None
    assert account.window_ns == 50_000
    assert account.warnings == (
        "no ProfilerStep# in the trace: the window is the span of the device operations, steps are unknown",
    )


def test_cpu_rank_computes_on_the_host(tmp_path: Path) -> None:
    trace = RankTrace(0, world_size=2, backend="gloo")
    trace.step(0, 0, 1000)
    trace.ran("aten::mm", 100, 400)
    trace.gloo("allreduce", at=405, start=410, end=700)
    trace.ran("aten::add", 600, 650)
    account = rank_account(built_run(tmp_path, [trace]).ranks[0])
    assert account is not None
    found = totals(account)
    assert (found["compute"], found["comm"], found["exposed"]) == (350_000, 290_000, 240_000)
    assert account.memory is None, "copies of a CPU rank are operators like any other"
    assert found["idle"] == 1_000_000 - 350_000 - 240_000


def test_recorded_gloo_run_has_an_account() -> None:
    run = load(DATA / "gloo-ddp", cache=False)
    for rank in run.ranks:
        found = totals(rank_account(rank))
        assert 0 < found["comm"] <= found["window"]
        assert found["compute"] + found["exposed"] + found["idle"] == found["window"]


def test_an_operator_around_a_collectives_call_does_not_hide_it(tmp_path: Path) -> None:
    r = RankTrace(backend="gloo")
    r.step(0, 0, 1000)
    r.ran("ReduceFromTensorParallel", 100, 800)  # waits for the collective that it asks for
    r.ran("aten::mm", 110, 190)
    r.gloo("allreduce", at=200, start=210, end=790)
    found = rank_account(built_run(tmp_path, [r]).ranks[0])
    assert found is not None
    assert found.compute.total_ns == 80_000
    assert found.exposed_comm.total_ns == found.comm.total_ns == 580_000
    assert found.overlap_pct == 0
