"""Probes of the recorder sharpen clocks, tie ranks that share no collective, and are flagged where wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.run.together import Job

from stepscope.run.aligned import AlignedRun, Clocks, aligned
from stepscope.run.load import Run

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


@pytest.mark.parametrize(
    "probes",
    [None, [], "x", {}, [{}], [None], [{"at_ns": 1, "offset_ns": None, "uncertainty_ns": 3}], [{"at_ns": 1.5}]],
)
def test_damaged_probes_are_no_probes(tmp_path: Path, probes: Any) -> None:
    job = Job(ranks=2)
    before = aligned(built_run(tmp_path, job.traces())).clocks
    run = built_run(tmp_path, job.traces(), description={"ranks": {"1": {"clock_probes": probes}, "0": 7}})
    assert aligned(run).clocks.offset_ns.tolist() == before.offset_ns.tolist()
