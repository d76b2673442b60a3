"""Clocks of constructed jobs are recovered within their uncertainty, by collectives, machines and probes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.run.together import Job

from stepscope.run.aligned import AlignedRun, aligned
from stepscope.run.clocks import Clocks
from stepscope.run.load import Run

SECOND = 1_000_000.0


def assert_recovered(clocks: Clocks, job: Job, *, moments_us: Sequence[float] | None = None) -> None:
    """Assert that a moment of true time comes out the same on all ranks, within the uncertainty."""
    for moment in moments_us if moments_us is not None else (0, job.steps * job.step_us):
        local = [t._local_ns(moment) + 1_700_000_000_000_000_000 for t in job.traces()]
        shared = np.array([int(clocks.shared(r, np.array([ns]))[0]) for r, ns in enumerate(local)])
        assert (np.abs(shared - shared[0]) <= clocks.uncertainty_ns).all(), shared - shared[0]


@pytest.mark.parametrize(
    "offset_us",
    [
        (0, 0, 0, 0),
        (0, 37.123, -12, 5),
        (0, 20_000, 0, 0),
        (0, 10 * SECOND, -10 * SECOND, 3600 * SECOND),
        (5e6, 0, 0, 0),
    ],
)
def test_offsets_up_to_an_hour_are_recovered(tmp_path: Path, offset_us: tuple[float, ...]) -> None:
    job = Job(offset_us=offset_us, late_us=(0, 0, 3000, 0))
    clocks = aligned(job.run(tmp_path)).clocks
    assert clocks.known.all()
    assert_recovered(clocks, job)
    assert (clocks.uncertainty_ns < 1_500_000).all(), "an uncertainty that says nothing would pass anything"
    assert np.isnan(clocks.drift_ppm).all(), "a window of 0.1 s cannot show a drift"
    assert not clocks.warnings


def test_drift_of_100_ppm_shows_on_a_long_window(tmp_path: Path) -> None:
    job = Job(steps=20, step_us=SECOND, drift_ppm=(0, 100, -60, 0), offset_us=(0, 5 * SECOND, 0, 40))
    clocks = aligned(job.run(tmp_path)).clocks
    moments = np.linspace(0, 20 * SECOND, 9)
    assert_recovered(clocks, job, moments_us=moments.tolist())
    assert clocks.drift_ppm[1] == pytest.approx(-100, abs=0.5)
    assert clocks.drift_ppm[2] == pytest.approx(60, abs=0.5)
    assert np.isnan(clocks.drift_ppm[[0, 3]]).all()
    assert not clocks.warnings


def test_groups_that_share_no_rank_are_tied_through_others(tmp_path: Path) -> None:
    """A 2 x 2 mesh: ranks 0 and 3 meet in no group, but both meet 1 and 2."""
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    offset = (0.0, 400.0, -900.0, 10 * SECOND)
    traces = [RankTrace(r, world_size=4, clock_offset_us=offset[r], groups=groups) for r in range(4)]
    for trace in traces:
        trace.step(0, 0, 20_000)
        for k in range(12):
            for name, ranks in groups.items():
                if trace.rank in ranks:
                    ready = 1500 * k + (600 if name.startswith("dp") else 0)
                    trace.collective("allreduce", at=ready, start=ready + 20 * trace.rank, end=ready + 500, group=name)
    clocks = aligned(built_run(tmp_path, traces)).clocks
    assert clocks.known.all()
    assert clocks.offset_ns.tolist() == [0, -400_000, 900_000, -10_000_000_000]
    assert clocks.uncertainty_ns[3] > clocks.uncertainty_ns[1], "two groups away is less sure than one"


def test_rank_that_nothing_ties_is_said_to_be_unknown(tmp_path: Path) -> None:
    groups = {"a": (0, 1), "b": (2, 3)}
    traces = [RankTrace(r, world_size=4, clock_offset_us=100 * r, groups=groups) for r in range(4)]
    for trace in traces:
        trace.step(0, 0, 20_000)
        name = "a" if trace.rank < 2 else "b"
        for k in range(5):
            trace.collective("allreduce", at=1000 * k, start=1000 * k + 10, end=1000 * k + 400, group=name)
    clocks = aligned(built_run(tmp_path, traces)).clocks
    assert clocks.known.tolist() == [True, True, False, False]
    assert np.isnan(clocks.uncertainty_ns[2:]).all()
    assert clocks.warnings == ("clock of rank 2, 3 unknown: no collective ties it to rank 0",)
    assert clocks.offset_ns[3] - clocks.offset_ns[2] == -100_000, "among themselves they are still aligned"


@pytest.mark.parametrize("jump_us", [3600 * SECOND, -3600 * SECOND, 50_000.0])
@pytest.mark.parametrize("after_step", [2, 5])
def test_clock_set_inside_the_window_is_flagged(tmp_path: Path, jump_us: float, after_step: int) -> None:
    job = Job(steps=8)
    traces = job.traces()
    boundary = traces[2]._local_ns(after_step * job.step_us) / 1000
    for event in traces[2].events:
        if event["ts"] >= boundary:
            event["ts"] += jump_us
    clocks = aligned(built_run(tmp_path, traces)).clocks
    said = re.fullmatch(r"clock of rank 2 jumps by (-?[\d.]+) ms inside the window", clocks.warnings[0])
    assert len(clocks.warnings) == 1
    assert said
    assert float(said[1]) == pytest.approx(jump_us / 1000, abs=0.1)


def test_starts_bound_the_offset_where_ends_mislead(tmp_path: Path) -> None:
    """No rank can end before all have started: an offset from ends alone that says so is moved."""
    traces = [RankTrace(r, world_size=2) for r in range(2)]
    for trace in traces:
        trace.step(0, 0, 50_000)
        for k in range(8):
            ready = 5000 * k
            # Rank 1 ends 300 us early on its own clock, although rank 0 arrives only 100 us before that.
            start, end = (ready + 200, ready + 600) if trace.rank == 0 else (ready, ready + 250)
            trace.collective("allreduce", at=ready - 20, start=start, end=end)
    clocks = aligned(built_run(tmp_path, traces)).clocks
    start0, end1 = 200_000, 250_000 + int(clocks.offset_ns[1])
    assert start0 <= end1


def four_ranks(tmp_path: Path, description: dict | None = None) -> Run:
    """Ranks 0 and 1 on one machine, 2 and 3 on another whose clock is 5 ms ahead; ends differ by jitter."""
    traces = []
    for rank in range(4):
        r = RankTrace(rank, world_size=4, clock_offset_us=5000 if rank > 1 else 0)
        r.step(0, 0, 20_000)
        for k in range(8):
            start = 100 + 2000 * k
            r.collective("allreduce", at=start, start=start + 10, end=start + 500 + 30 * rank, elements=4096)
        traces.append(r)
    return built_run(tmp_path, traces, description=description)


def test_ranks_of_the_first_machine_need_no_estimate(tmp_path: Path) -> None:
    run = four_ranks(tmp_path, {"ranks": {str(r): {"boot_id": "a" if r < 2 else "b"} for r in range(4)}})
    clocks = aligned(run).clocks
    assert clocks.offset_ns[1] == 0
    assert clocks.uncertainty_ns[1] == 1000
    assert clocks.offset_ns[2] == clocks.offset_ns[3]
    assert abs(clocks.offset_ns[2] + 5_000_000) <= clocks.uncertainty_ns[2]


def test_without_boot_ids_each_rank_is_estimated(tmp_path: Path) -> None:
    clocks = aligned(four_ranks(tmp_path)).clocks
    assert len(np.unique(clocks.offset_ns)) == 4


def test_shifted_file_is_aligned_although_its_machine_has_one_clock(tmp_path: Path) -> None:
    traces = []
    for rank in range(4):
        r = RankTrace(rank, world_size=4, clock_offset_us=20_000 if rank == 1 else 0)
        r.step(0, 0, 20_000)
        for k in range(8):
            start = 100 + 2000 * k
            r.collective("allreduce", at=start, start=start + 10, end=start + 500, elements=4096)
        traces.append(r)
    run = built_run(tmp_path, traces, description={"ranks": {str(r): {"boot_id": "a"} for r in range(4)}})
    assert aligned(run).clocks.offset_ns.tolist() == [0, -20_000_000, 0, 0]


BASE_NS = 1_700_000_000_000_000_000
SECOND_US = 1_000_000.0


def probe(trace: RankTrace, true_us: float, *, within_us: float, error_us: float = 0.0) -> dict[str, Any]:
    """Return what a rank's question to rank 0 gives at a moment of true time; rank 0's clock is the true one."""
    local_ns = BASE_NS + trace._local_ns(true_us)
    truth_ns = BASE_NS + RankTrace(0)._local_ns(true_us) - local_ns
    return {
        "when": "before",
        "at_ns": local_ns,
        "offset_ns": truth_ns + round(error_us * 1000),
        "uncertainty_ns": round(within_us * 1000),
    }


def described(probes: dict[int, Any], machines: str) -> dict[str, Any]:
    """Return a `run.json` in which rank r is on the machine that the r-th letter names."""
    return {"ranks": {str(r): {"boot_id": m, "clock_probes": probes.get(r)} for r, m in enumerate(machines)}}


def errors_ns(run: Run, shared: AlignedRun, traces: list[RankTrace], true_us: float) -> np.ndarray:
    """Return how far each rank is from rank 0 on the shared clock at one moment of true time."""
    local = [BASE_NS + traces[r.rank]._local_ns(true_us) for r in run.ranks]
    clocks: Clocks = shared.clocks
    times = np.array([int(clocks.shared(i, np.array([ns]))[0]) for i, ns in enumerate(local)])
    return times - times[0]


def test_probe_within_the_collectives_bounds_sharpens_them(tmp_path: Path) -> None:
    """Ends of a slow collective leave half a millisecond open; the probe leaves 20 us."""
    job = Job(ranks=2, offset_us=(0, 7_000), transfer_us=2000, end_jitter_us=200)
    traces = job.traces()
    asked = [probe(traces[1], at, within_us=20, error_us=-13) for at in (-100, 130_000)]
    without = aligned(built_run(tmp_path, job.traces())).clocks
    run = built_run(tmp_path, traces, description=described({1: asked}, "ab"))
    shared = aligned(run)
    assert without.uncertainty_ns[1] > 200_000
    assert shared.clocks.uncertainty_ns[1] <= 42_000
    assert abs(errors_ns(run, shared, traces, 0)[1]) <= shared.clocks.uncertainty_ns[1]
    assert not shared.clocks.warnings


@pytest.mark.parametrize("offset_us", [0.0, 20_000.0, -10 * SECOND_US])
def test_ranks_without_a_common_collective_are_tied_by_probes(tmp_path: Path, offset_us: float) -> None:
    """Two groups on two machines; what the ranks of one group know of each other stays as sharp as it was."""
    groups = {"a": (0, 1), "b": (2, 3)}
    offset = (0.0, 0.0, offset_us, offset_us + 3)
    traces = [RankTrace(r, world_size=4, clock_offset_us=offset[r], groups=groups) for r in range(4)]
    for trace in traces:
        trace.step(0, 0, 20_000)
        for k in range(6):
            start, end = 1000 * k + 10 + 30 * trace.rank, 1000 * k + 400
            trace.collective("allreduce", at=1000 * k, start=start, end=end, group="a" if trace.rank < 2 else "b")
    asked = [probe(traces[2], at, within_us=150, error_us=90) for at in (-500, 25_000)]
    run = built_run(tmp_path, traces, description={"ranks": {"2": {"clock_probes": asked}}})
    shared = aligned(run)
    assert shared.clocks.known.all()
    assert not shared.clocks.warnings
    error = errors_ns(run, shared, traces, 5000)
    assert (np.abs(error) <= shared.clocks.uncertainty_ns).all()
    assert error[2:].tolist() == [90_000, 90_000], "moved together: the probe's own error, and the same for both"
    assert 150_000 <= shared.clocks.uncertainty_ns[2] < 160_000
    assert [int(w.sum()) for w in shared.wait_ns] == [6 * 30_000, 0, 6 * 30_000, 0]


def test_drift_between_two_probes_is_taken_out(tmp_path: Path) -> None:
    """No collective at all, a window of a minute, a clock that runs 80 ppm fast: 4.8 ms apart at its end."""
    traces = [RankTrace(r, world_size=2, clock_offset_us=2e6 * r, drift_ppm=80 * r) for r in range(2)]
    for trace in traces:
        for step in range(3):
            trace.step(step, 20 * SECOND_US * step, 20 * SECOND_US * (step + 1) - 10)
        trace.kernel("gemm", at=10, start=20, end=30)
    asked = [probe(traces[1], at * SECOND_US, within_us=100, error_us=e) for at, e in ((-1, 60), (61, -70))]
    run = built_run(tmp_path, traces, description=described({1: asked}, "ab"))
    shared = aligned(run)
    for moment in (0, 30 * SECOND_US, 60 * SECOND_US):
        error = errors_ns(run, shared, traces, moment)
        assert abs(error[1]) <= shared.clocks.uncertainty_ns[1] <= 110_000


def test_probe_that_contradicts_the_collectives_is_flagged_and_ignored(tmp_path: Path) -> None:
    job = Job(ranks=3, offset_us=(0, 7_000, 0))
    traces = job.traces()
    before = aligned(built_run(tmp_path, job.traces())).clocks
    asked = {1: [probe(traces[1], 0, within_us=30, error_us=20_000)], 2: [probe(traces[2], 0, within_us=300)]}
    clocks = aligned(built_run(tmp_path, traces, description=described(asked, "abc"))).clocks
    assert clocks.offset_ns.tolist() == before.offset_ns.tolist()
    assert clocks.uncertainty_ns[1] == before.uncertainty_ns[1]
    assert clocks.warnings == (
        "clock probes of rank 1 contradict the collectives, which count: a clock was set or a file was changed "
        "after recording",
    )
