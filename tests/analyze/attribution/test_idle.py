"""Each cause of idle time planted with a known length, and found again; also where two ranks share a device."""

import json
from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.analyze.budget import CAUSE_NAMES, RankBudget, budgets, rank_budget
from stepscope.analyze.host_time import blocked_host
from stepscope.run.aligned import aligned
from stepscope.run.rank import Rank


def one_gap(r: RankTrace, *, start: float, end: float, at: float, stream: int = 7, thread: int = 100) -> None:
    """A step whose device is idle from `start` to `end`, when work launched at `at` begins."""
    r.step(0, 0, end + 200)
    r.kernel("before", at=5, start=10, end=start)
    r.kernel("after", at=at, start=end, end=end + 100, stream=stream, thread=thread)
    r.kernel("last", at=at + 5, start=end + 100, end=end + 200)


def budget_of(tmp_path: Path, r: RankTrace) -> RankBudget:
    shared = aligned(built_run(tmp_path, [r]))
    found = rank_budget(shared.run.ranks[0], wait_ns=shared.wait_ns[0])
    assert found is not None
    return found


def causes(tmp_path: Path, r: RankTrace) -> dict[str, float]:
    """Return idle microseconds by cause, less the 10 before the step's first kernel."""
    found = budget_of(tmp_path, r)
    out = dict(zip(CAUSE_NAMES, (found.cause_ns.sum(axis=0) / 1000).tolist(), strict=True))
    out["launch"] -= 10
    return {cause: us for cause, us in out.items() if us}


def test_long_gap_before_queued_work_is_queued(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=260, at=100)
    assert causes(tmp_path, r) == {"queued": 60}


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "hipMemcpyWithStream", "cudaMemcpy"]
)
def test_gap_that_begins_in_a_synchronisation_is_all_its(tmp_path: Path, name: str) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=300, at=290)
    r.call(name, 50, 205)
    assert causes(tmp_path, r) == {"host_sync": 5, "after_sync": 95}


@pytest.mark.parametrize("stream", [7, 8])
def test_work_whose_launch_has_not_returned_is_not_queued(tmp_path: Path, stream: int) -> None:
    r = RankTrace()
    r.step(0, 0, 1500)
    r.kernel("before", at=5, start=10, end=200)
    r.kernel("first of its module", at=100, call_us=850, start=1000, end=1400, stream=stream)
    assert causes(tmp_path, r) == {"slow_call": 750, "launch": 50, "unknown": 100}


def test_long_launch_after_a_synchronisation_is_not_the_synchronisations(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 1500)
    r.kernel("before", at=5, start=10, end=600)
    r.call("cudaStreamSynchronize", 50, 610)
    r.kernel("first of its module", at=620, call_us=375, start=1000, end=1500)
    assert causes(tmp_path, r) == {"slow_call": 375, "host_sync": 10, "after_sync": 15}


@pytest.mark.parametrize(
    ("operators", "after"), [(True, {"after_sync": 1950}), (False, {"unknown": 1940, "after_sync": 10})]
)
def test_host_code_after_a_synchronisation_is_unknown_where_it_is_not_recorded(tmp_path, operators, after):
    r = RankTrace()
    one_gap(r, start=1200, end=3200, at=3190)
    r.call("cudaDeviceSynchronize", 50, 1250)
    if operators:
        with r.op("aten::add", 3180, 3195):
            pass
    assert causes(tmp_path, r) == {"host_sync": 50} | after


def test_stopping_the_profiler_is_the_profilers(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=700, at=690)
    r.call("cudaProfilerStop", 190, 690)
    assert causes(tmp_path, r) == {"profiler": 500}


def test_block_on_the_main_thread_delays_the_autograd_thread(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=300, at=290, thread=AUTOGRAD)
    r.backward("AddmmBackward0", 285, 299)
    r.call("cudaMalloc", 190, 280)
    assert causes(tmp_path, r) == {"allocator": 100}


def test_later_gaps_belong_to_a_block_until_the_lost_lead_is_used_up(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 1500)
    r.kernel("long", at=5, start=10, end=1000)
    r.kernel("queued", at=8, start=1000, end=1100)  # the device never runs dry during the synchronisation
    r.call("cudaStreamSynchronize", 100, 250, thread=100)
    for k in range(4):  # four gaps of 60 follow; the host lost 150
        r.kernel("late", at=1150 + 100 * k, start=1160 + 100 * k, end=1200 + 100 * k)
    assert causes(tmp_path, r) == {"after_sync": 150, "launch": 90}


def two_ranks(folder: Path, uuids: tuple[str | None, str | None], *, ahead_us: float = 0) -> list[dict[str, float]]:
    """Return per rank its idle time by cause, us; in rank 0 a gap of 200 lies before queued work, and rank 1 runs for
    150 of it.
    """
    ranks = [RankTrace(rank, world_size=2, clock_offset_us=ahead_us * rank) for rank in range(2)]
    for r in ranks:
        r.step(0, 0, 2000)
        r.collective("allreduce", at=5, start=20, end=100)
    ranks[0].kernel("first", at=10, start=100, end=500)
    ranks[0].kernel("queued", at=15, start=700, end=1500)
    ranks[1].kernel("meanwhile", at=10, start=520, end=670)
    for r in ranks:
        r.collective("allreduce", at=50, start=1500, end=1900)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "world_size": 2}))
    for rank, uuid in enumerate(uuids):
        if uuid is not None:
            line = json.dumps({"kind": "device", "index": 0, "name": "NVIDIA H200", "uuid": uuid})
            (folder / f"rank{rank:05d}.telemetry.jsonl").write_text(line + "\n")
    found = budgets(aligned(built_run(folder, ranks)))
    out = []
    for budget in found:
        assert budget is not None
        assert (budget.part_ns.sum(axis=1) == budget.periods.dur_ns).all()
        out.append(dict(zip(CAUSE_NAMES, (budget.cause_ns.sum(axis=0) / 1000).tolist(), strict=True)))
        out[-1]["other_compute"] = float(budget.ns("other_compute").sum() / 1000)
    return out


@pytest.mark.parametrize("ahead_us", [0, 700])
def test_another_ranks_work_on_the_device_is_why(ahead_us: float, tmp_path: Path) -> None:
    first, _ = two_ranks(tmp_path, ("GPU-1", "GPU-1"), ahead_us=ahead_us)
    assert first["shared_device"] == pytest.approx(150, abs=1)
    assert first["queued"] == pytest.approx(50, abs=1)
    assert first["other_compute"] == first["shared_device"]


@pytest.mark.parametrize("uuids", [("GPU-1", "GPU-2"), (None, None), ("GPU-1", None)])
def test_work_on_another_device_is_not(uuids: tuple[str | None, str | None], tmp_path: Path) -> None:
    first, _ = two_ranks(tmp_path, uuids)
    assert (first["shared_device"], first["queued"]) == (0, 200)


MS = 1000.0


def rank_of(folder: Path, trace: RankTrace) -> Rank:
    return built_run(folder, [trace]).ranks[0]


def test_slow_launches_into_a_long_queue_are_blocked(tmp_path: Path) -> None:
    """The host is 150 launches ahead and gets on no faster than the device; its first launch was slow by itself."""
    trace = RankTrace(0)
    trace.step(0, 0, 100 * MS)
    trace.kernel("gemm", at=10, start=100, end=300, call_us=80)
    for i in range(1, 150):
        trace.kernel("gemm", at=100 + 10 * i, start=100 + 200 * i, end=300 + 200 * i, call_us=5)
    for i in range(150, 160):
        trace.kernel("gemm", at=2000 + 200 * (i - 150), start=100 + 200 * i, end=300 + 200 * i, call_us=190)
    start, end = blocked_host(rank_of(tmp_path, trace))
    assert ((end - start) / 1000).tolist() == [190] * 10
