"""What the host did between two moments: blocked, loading, allocating, stalled, or its own work."""

from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.host_time import blocked_host, computing_operators, host_parts, stalling
from stepscope.run.rank import Rank

MS = 1000.0
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def rank_of(folder: Path, trace: RankTrace) -> Rank:
    return built_run(folder, [trace]).ranks[0]


def busy(trace: RankTrace, start: float, end: float) -> None:
    """Let the host run short operators with no hole in between."""
    for at in np.arange(start, end, 0.5 * MS).tolist():
        trace.ran("aten::work", at, min(at + 0.5 * MS, end))


def parts_ms(rank: Rank, start: float, end: float) -> dict[str, float]:
    """Return the parts of one span of true time in ms."""
    origin = int(rank.steps.start_ns[0])
    at = [np.array([origin + round(t * 1000)]) for t in (start, end)]
    found = host_parts(rank, *at)
    return {name: getattr(found, f"{name}_ns")[0] / 1e6 for name in ("own", "data", "allocator", "stall")}


@pytest.fixture
def mixed(tmp_path: Path) -> Rank:
    """Return 20 ms of: 2 loading, 3 own, 4 blocked, 1 own, 5 stalled, 2 allocating, 3 own."""
    trace = RankTrace(0)
    trace.step(0, 0, 20 * MS)
    trace.annotation(LOADER, 0, 2 * MS)
    busy(trace, 0, 5 * MS)
    trace.kernel("gemm", at=4 * MS, start=4.1 * MS, end=8.9 * MS)
    trace.call("cudaStreamSynchronize", 5 * MS, 9 * MS)
    busy(trace, 9 * MS, 10 * MS)
    trace.call("cudaMalloc", 15 * MS, 17 * MS)
    busy(trace, 17 * MS, 20 * MS)
    return rank_of(tmp_path, trace)


def test_every_moment_is_one_part(mixed: Rank) -> None:
    assert parts_ms(mixed, 0, 20 * MS) == {"own": 7, "data": 2, "allocator": 2, "stall": 5}
    assert parts_ms(mixed, 1 * MS, 6 * MS) == {"own": 3, "data": 1, "allocator": 0, "stall": 0}
    assert parts_ms(mixed, 12 * MS, 16 * MS) == {"own": 0, "data": 0, "allocator": 1, "stall": 3}


def test_long_calls_wait_for_room_in_the_queue(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 10 * MS)
    trace.kernel("gemm", at=0.1 * MS, start=0.2 * MS, end=1.6 * MS, call_us=5)
    trace.kernel("gemm", at=1 * MS, start=1.6 * MS, end=2 * MS, call_us=700)
    trace.kernel("gemm", at=1.8 * MS, start=2 * MS, end=4 * MS, call_us=300)
    trace.call("cudaMalloc", 3 * MS, 4 * MS)
    rank = rank_of(tmp_path, trace)
    start, end = blocked_host(rank)
    assert ((end - start) / 1000).tolist() == [700]
    assert [len(x) for x in blocked_host(rank, synchronisations_only=True)] == [0, 0]


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


def test_pageable_copies_block_and_pinned_ones_do_not(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 10 * MS)
    trace.copy("HtoD (Pageable -> Device)", at=1 * MS, start=1.1 * MS, end=1.2 * MS, call_us=250)
    trace.copy("HtoD (Pinned -> Device)", at=2 * MS, start=2.1 * MS, end=2.2 * MS, call_us=250)
    start, end = blocked_host(rank_of(tmp_path, trace), synchronisations_only=True)
    assert ((end - start) / 1000).tolist() == [250]


@pytest.mark.parametrize(("hole_ms", "stalled"), [(0.9, False), (1.5, True), (8.0, True)])
def test_hole_of_a_millisecond_is_a_stall(tmp_path: Path, hole_ms: float, stalled: bool) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 20 * MS)
    busy(trace, 0, 5 * MS)
    busy(trace, 5 * MS + hole_ms * MS, 20 * MS)
    assert stalling(rank_of(tmp_path, trace)).total_ns == (hole_ms * 1e6 if stalled else 0)


def test_an_operator_that_computes_on_the_host_stalls_the_device(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 20 * MS)
    busy(trace, 0, 5 * MS)
    trace.kernel("gemm", at=1 * MS, start=1.1 * MS, end=3 * MS)
    trace.ran("aten::tril", 5 * MS, 12 * MS)  # a mask made on the host
    with trace.op("aten::copy_", 12 * MS, 15 * MS):  # long, but it waits for the device
        trace.call("cudaMemcpyAsync", 12.1 * MS, 14.9 * MS)
    busy(trace, 15 * MS, 20 * MS)
    rank = rank_of(tmp_path, trace)
    assert [rank.trace.text(rank.trace["name"][row]) for row in computing_operators(rank)] == ["aten::tril"]
    assert parts_ms(rank, 0, 20 * MS)["stall"] == 7
