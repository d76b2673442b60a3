"""Each cause of idle time planted with a known length, and found again."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.analyze.budget import RankBudget, rank_budget
from stepscope.analyze.idle import CAUSE_NAMES
from stepscope.run.aligned import aligned


def one_gap(r: RankTrace, *, start: float, end: float, at: float, stream: int = 7, thread: int = 100) -> None:
    """A step whose device is idle from `start` to `end`, when work launched at `at` begins."""
    r.step(0, 0, end + 500)
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


def test_host_that_launches_late_is_launch(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=300, at=290)
    r.ran("aten::mm", 150, 280)
    assert causes(tmp_path, r) == {"launch": 100}


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
    assert causes(tmp_path, r) == {"host_sync": 100}


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree", "cudaHostAlloc", "hipMalloc", "cuMemMap"])
def test_allocator(tmp_path: Path, name: str) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=300, at=290)
    r.call(name, 190, 270)
    assert causes(tmp_path, r) == {"allocator": 100}


@pytest.mark.parametrize("name", ["data_loading", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"])
def test_data_loader(tmp_path: Path, name: str) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=5300, at=5290)
    r.annotation(name, 150, 5200)
    assert causes(tmp_path, r) == {"data_loading": 5100}


def test_nothing_recorded_for_long_is_a_stall(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=5300, at=5290)
    r.ran("aten::add", 150, 180)
    r.ran("aten::mm", 5200, 5280)
    assert causes(tmp_path, r) == {"host_stall": 5100}


def test_garbage_collector_is_named(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=900, at=890)
    r.python("<built-in function collect>", 190, 800)
    assert causes(tmp_path, r) == {"garbage_collector": 700}


def test_profilers_own_synchronisation_is_nobodys(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=300, at=290)
    r.call("cudaDeviceSynchronize", 801, 5000)
    assert causes(tmp_path, r) == {"launch": 100}


def test_block_on_the_main_thread_delays_the_autograd_thread(tmp_path: Path) -> None:
    r = RankTrace()
    one_gap(r, start=200, end=300, at=290, thread=AUTOGRAD)
    r.backward("AddmmBackward0", 285, 299)
    r.call("cudaMalloc", 190, 280)
    assert causes(tmp_path, r) == {"allocator": 100}


def test_later_gaps_belong_to_a_block_until_the_lost_lead_is_used_up(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 5000)
    r.kernel("long", at=5, start=10, end=1000)
    r.kernel("queued", at=8, start=1000, end=1100)  # the device never runs dry during the synchronisation
    r.call("cudaStreamSynchronize", 100, 250, thread=100)
    for k in range(4):  # four gaps of 60 follow; the host lost 150
        r.kernel("late", at=1150 + 100 * k, start=1160 + 100 * k, end=1200 + 100 * k)
    assert causes(tmp_path, r) == {"host_sync": 150, "launch": 90}
