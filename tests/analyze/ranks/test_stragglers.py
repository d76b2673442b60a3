"""A rank that others wait for is named, with its cause; one that lags, idles, or is cleared by the log is not."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.analyze.steadiness import device_states, device_warnings
from stepscope.analyze.stragglers import find_stragglers, uneven_compute
from stepscope.diagnose.findings import diagnose
from stepscope.records import Row
from stepscope.run.aligned import aligned
from stepscope.run.load import Run, load
from stepscope.run.side_files import Telemetry

GLOO = Path(__file__).parents[2] / "data" / "gloo-ddp"
MS = 1000.0
STEPS = 6

Slow = Callable[[RankTrace, float], tuple[float, float]]
"""Add what makes a rank's step slow at `begin`; return by how much its launches and its compute are longer."""


def job(slow: dict[int, Slow], *, ranks: int = 4, steps: int = STEPS, offset_us: float = 0) -> list[RankTrace]:
    """Return ranks that compute 6 ms, all-reduce when the last is ready, and wait for the device at the end."""
    traces = [RankTrace(r, world_size=ranks, clock_offset_us=offset_us * r) for r in range(ranks)]
    begin = 0.0
    for step in range(steps):
        ready, ends = [], []
        for trace in traces:
            host, device = slow.get(trace.rank, lambda *_: (0.0, 0.0))(trace, begin)
            launch = begin + 1 * MS + host
            with trace.op("aten::mm", launch - 5, launch + 5, **{"Input Dims": [[64, 64]]}):  # type: ignore[arg-type]
                trace.kernel("gemm", at=launch, start=launch + 5, end=launch + 5 + 6 * MS + device)
            ready.append(launch + 5 + 6 * MS + device)
            ends.append(launch)
        end = max(ready) + 1 * MS
        for trace, own, launch in zip(traces, ready, ends, strict=True):
            trace.collective("allreduce", at=launch + 50, start=own, end=end, elements=1_000_000)
            trace.call("cudaDeviceSynchronize", launch + 100, end + 10)
            trace.step(step, begin, end + 20)
        begin = end + 30
    return traces


def host_slow(extra_ms: float) -> Slow:
    def add(trace: RankTrace, begin: float) -> tuple[float, float]:
        trace.ran("aten::busy", begin + 100, begin + 100 + extra_ms * MS)
        return extra_ms * MS, 0.0

    return add


def data_slow(extra_ms: float) -> Slow:
    def add(trace: RankTrace, begin: float) -> tuple[float, float]:
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, begin + extra_ms * MS)
        return extra_ms * MS, 0.0

    return add


def device_slow(extra_ms: float) -> Slow:
    return lambda *_: (0.0, extra_ms * MS)


def found(folder: Path, traces: list[RankTrace], **options: float) -> list[Row]:
    return find_stragglers(aligned(built_run(folder, traces)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slow", "cause"),
    [(host_slow(5), "host"), (data_slow(5), "data"), (device_slow(5), "device")],
    ids=["host", "data", "device"],
)
@pytest.mark.parametrize(("ranks", "late"), [(2, 1), (2, 0), (4, 2), (8, 7)])
def test_late_rank_is_named_with_its_cause(tmp_path: Path, slow: Slow, cause: str, ranks: int, late: int) -> None:
    (straggler,) = found(tmp_path, job({late: slow}, ranks=ranks, offset_us=20 * MS))
    assert (straggler.rank, straggler.cause) == (late, cause)
    assert straggler.steps_late == straggler.num_steps == STEPS
    assert straggler.persistent
    assert straggler.late_ns_per_step == pytest.approx(5e6, rel=0.02)
    assert straggler.slowdown == pytest.approx((8 + 5) / 8, rel=0.01)


def test_host_that_runs_ahead_of_a_busy_device_is_no_straggler(tmp_path: Path) -> None:
    """Without synchronisation the device decides the step: 3 ms more of the host hide behind its 7 ms."""
    traces = job({1: host_slow(3)})
    for trace in traces:
        trace.events = [e for e in trace.events if e["name"] != "cudaDeviceSynchronize"]
        spans = sorted((e for e in trace.events if "ProfilerStep" in e["name"]), key=lambda e: e["ts"])
        host_us = 4500 if trace.rank == 1 else 1500
        for e in spans:
            e["dur"] = host_us
    assert found(tmp_path, traces) == []


def test_more_work_of_the_same_kind_is_load_and_not_a_slow_device(tmp_path: Path) -> None:
    traces = job({3: device_slow(5)})
    for event in traces[3].events:
        if event["name"] == "aten::mm":
            event["args"]["Input Dims"] = [[128, 64]]
    (straggler,) = found(tmp_path, traces)
    assert (straggler.rank, straggler.cause) == (3, "load")


def test_equal_ranks_have_no_straggler(tmp_path: Path) -> None:
    assert found(tmp_path, job({})) == []


def test_constant_lag_of_a_rank_is_no_straggler(tmp_path: Path) -> None:
    """One rank's clock and whole schedule are 3 ms behind; what it does takes no longer."""
    traces = job({})
    for event in traces[2].events:
        event["ts"] += 3 * MS
    assert found(tmp_path, traces) == []


def test_rank_late_in_few_steps_is_intermittent(tmp_path: Path) -> None:
    slow = host_slow(40)
    calls = []

    def sometimes(trace: RankTrace, begin: float) -> tuple[float, float]:
        calls.append(begin)
        return slow(trace, begin) if len(calls) % 3 == 1 else (0.0, 0.0)

    (straggler,) = found(tmp_path, job({1: sometimes}, steps=12))
    assert straggler.rank == 1
    assert straggler.steps_late == 4
    assert not straggler.persistent
    assert straggler.late_ns_per_step == pytest.approx(40e6 / 3, rel=0.02)


@pytest.mark.parametrize(("ranks", "late"), [(4, {1: 6, 3: 4}), (4, {1: 6, 2: 5, 3: 8}), (8, {0: 3, 5: 9})])
def test_late_ranks_do_not_hide_each_other(tmp_path: Path, ranks: int, late: dict[int, int]) -> None:
    named = found(tmp_path, job({rank: device_slow(extra_ms) for rank, extra_ms in late.items()}, ranks=ranks))
    assert {one.rank: round(one.late_ns_per_step / 1e6) for one in named} == late


def test_finding_names_the_range_that_takes_longer(tmp_path: Path) -> None:
    def in_range(trace: RankTrace, begin: float) -> tuple[float, float]:
        trace.annotation("augment", begin + 100, begin + 100 + 20 * MS)
        return 20 * MS, 0.0

    first = diagnose(account_of(built_run(tmp_path, job({2: in_range})))).findings[0]
    assert (first.id, first.ranks) == ("straggler", (2,)) and "augment" in first.cause + first.remedy


def test_recorded_gloo_rank_that_slept_is_named() -> None:
    (straggler,) = find_stragglers(aligned(load(GLOO, cache=False)))
    assert (straggler.rank, straggler.cause, straggler.persistent) == (1, "host", True)
    assert straggler.late_ns_per_step > 4e6, "it slept 4 ms in every step"


def in_turn(extra_ms: float, *, first: bool) -> Slow:
    """Return a host that is slow in every other step."""
    turn = [first]

    def add(trace: RankTrace, begin: float) -> tuple[float, float]:
        turn[0] = not turn[0]
        return (0.0, 0.0) if turn[0] else host_slow(extra_ms)(trace, begin)

    return add


def test_ranks_that_are_late_in_turn_are_both_named(tmp_path: Path) -> None:
    """Each waits for the other as long as the others do; what tells is who waits while it is late."""
    slow = {0: in_turn(20, first=True), 2: in_turn(20, first=False)}
    found = find_stragglers(aligned(built_run(tmp_path, job(slow))))
    assert sorted(s.rank for s in found) == [0, 2]
    assert {s.cause for s in found} == {"host"} and not any(s.persistent for s in found)


SHORT, LONG, TRANSFER = 2000, 4000, 200
PERIOD = LONG + TRANSFER + 100


def in_turns(folder: Path, *, more_threads: bool = True, uneven: bool = True, transfers: int = TRANSFER) -> Run:
    """Return two ranks of which one computes 4 ms and the other 2 ms, in turns, before they meet in each step."""
    built = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2)
        for n in range(8):
            at = n * PERIOD
            heavy = uneven and n % 2 == rank
            took = LONG if heavy or not uneven else SHORT
            r.step(n, at, at + PERIOD)
            grid = [200 if heavy and more_threads else 100, 1, 1]
            with r.op("aten::mm", at + 5, at + 30):
                r.kernel("gemm", at=at + 10, start=at + 20, end=at + 20 + took, grid=grid, block=[128, 1, 1])
            r.call("cudaStreamWaitEvent", at + 34, at + 36)
            start = at + 20 + took
            r.collective("allreduce", at=at + 40, start=start, end=at + 20 + LONG + transfers, elements=1 << 20)
            r.call("cudaDeviceSynchronize", at + 60, at + 30 + LONG + transfers)
        built.append(r)
    folder.mkdir(exist_ok=True)
    return built_run(folder, built)


def test_work_in_turns_is_an_imbalance_of_no_rank(tmp_path: Path) -> None:
    found = uneven_compute(in_turns(tmp_path).ranks)
    assert found is not None and found.heaviest == ()
    assert found.imbalance_ns == pytest.approx((LONG - SHORT) / 2 * 1000)


def test_the_same_threads_in_more_time_are_a_slow_device_not_a_load(tmp_path: Path) -> None:
    assert uneven_compute(in_turns(tmp_path, more_threads=False).ranks) is None


def test_equal_ranks_are_even(tmp_path: Path) -> None:
    assert uneven_compute(in_turns(tmp_path, uneven=False).ranks) is None


def test_the_saving_is_that_of_the_mean_in_every_step(tmp_path: Path) -> None:
    account = account_of(in_turns(tmp_path))
    (found,) = [f for f in diagnose(account).findings if f.id == "load-imbalance"]
    assert "take turns" in found.title and found.ranks == ()
    assert found.alone_ns == pytest.approx((LONG - SHORT) / 2 * 1000, rel=0.1)


COLUMNS = ("sm_clock_mhz", "power_w", "temperature_c", "utilization_pct", "memory_used_bytes")


def telemetry(uuids: Sequence[str | None]) -> list[Telemetry]:
    return [
        Telemetry(rank, {"name": "H200", "uuid": uuid}, {c: np.ones(3) for c in COLUMNS}, (frozenset(),) * 3)
        for rank, uuid in enumerate(uuids)
    ]


def test_ranks_on_one_device_are_warned_of_once() -> None:
    states = device_states(telemetry(["GPU-a", "GPU-a", "GPU-a", "GPU-b"]), [])
    assert [s.shared_with for s in states] == [(1, 2), (0, 2), (0, 1), ()]
    (line,) = device_warnings(states)
    assert line.startswith("ranks 0-2 share one device")


def test_devices_of_their_own_or_without_a_name_are_not_shared() -> None:
    assert device_warnings(device_states(telemetry(["GPU-a", "GPU-b"]), [])) == []
    assert device_warnings(device_states(telemetry([None, None]), [])) == []


LOGGED, WINDOW = 60, range(20, 25)
