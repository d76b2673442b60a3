"""The replay of a recorded job takes as long as the job did, and its critical path names what decides the step."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.simulate import SYNC, WAIT, Op, collective, kernel, simulate
from tests.analyze.step_logs import log_lines, write_log
from tests.not_none import not_none

from stepscope.analyze.replay.removal import critical_path
from stepscope.analyze.replay.replay import Replay, replay_of
from stepscope.records import Row
from stepscope.run.aligned import AlignedRun, aligned
from stepscope.run.load import load

GLOO = Path(__file__).parents[2] / "data" / "gloo-ddp"

DDP = [kernel(300), collective(500), kernel(300), collective(500), kernel(300), WAIT, kernel(100)]
PROGRAMS: dict[str, list[Sequence[Op]]] = {
    "host-bound": [[kernel(10, host_us=100) for _ in range(20)]],
    "device-bound": [[kernel(500) for _ in range(20)]],
    "synchronised at the end": [[*[kernel(300) for _ in range(6)], SYNC]],
    "synchronised in between": [[*[kernel(300) for _ in range(5)], SYNC, *[kernel(50, host_us=100) for _ in range(5)]]],
    "loading data": [[Op("data", 3000), *[kernel(300) for _ in range(5)], SYNC]],
    "stalled": [[Op("stall", 3000), *[kernel(300) for _ in range(5)], SYNC]],
    "allocating": [[Op("alloc", 3000), *[kernel(300) for _ in range(5)], SYNC]],
    "another stream": [DDP, DDP],
    "late device": [[*DDP, SYNC], [kernel(2300), *DDP[1:], SYNC]],
    "late host": [[*DDP, SYNC], [kernel(300, host_us=2000), *DDP[1:], SYNC], [*DDP, SYNC]],
    "late in turn": [
        [kernel(900), collective(200), kernel(100), SYNC],
        [kernel(100), collective(200), kernel(900), SYNC],
    ],
}  # fmt: skip


def replayed(folder: Path, programs: Sequence[Sequence[Op]], **options: float) -> tuple[float, Replay]:
    """Return the true period in us, and the replay."""
    job = simulate(*programs, **options)  # type: ignore[arg-type]
    replay = not_none(replay_of(job.aligned(folder)))
    return job.period_us, replay


@pytest.mark.parametrize("name", PROGRAMS)
def test_replay_takes_as_long_as_the_job(tmp_path: Path, name: str) -> None:
    truth, replay = replayed(tmp_path, PROGRAMS[name])
    assert replay.period_ns / 1000 == pytest.approx(truth, rel=0.003)
    assert replay.profiled_ns == replay.period_ns
    assert (replay.host_factor, replay.factor_identified) == (1.0, False)


@pytest.mark.parametrize("name", ["late host", "another stream"])
def test_clocks_apart_change_nothing(tmp_path: Path, name: str) -> None:
    truth, replay = replayed(tmp_path, PROGRAMS[name], offset_us=(0, 5e6, -20_000))  # type: ignore[arg-type]
    assert replay.period_ns / 1000 == pytest.approx(truth, rel=0.003)


@pytest.mark.parametrize(
    "name", ["host-bound", "device-bound", "synchronised in between", "another stream", "late host"]
)
@pytest.mark.parametrize("left_out", ["first", "last"])
def test_step_left_out_is_predicted_from_the_others(tmp_path: Path, name: str, left_out: str) -> None:
    """Durations vary by 1 %; the period of a step is known from the other steps within 3 %."""
    job = simulate(*PROGRAMS[name], steps=9, jitter=0.01, seed=5)
    ends = job.step_ends_us[0]
    step = 1 if left_out == "first" else 8
    truth = ends[step] - ends[step - 1]
    gone = {f"ProfilerStep#{k}" for k in ((0, 1) if left_out == "first" else (8,))}
    for trace in job.traces:
        trace.events = [e for e in trace.events if e["name"] not in gone]
    replay = not_none(replay_of(job.aligned(tmp_path)))
    assert len(replay.steps) == 9 - len(gone)
    assert replay.period_ns / 1000 == pytest.approx(truth, rel=0.03)


def test_profiler_is_taken_out_of_a_host_bound_step(tmp_path: Path) -> None:
    """The step took 70 % without the profiler: the host's own time shrinks until the replay does too."""
    shared = simulate(PROGRAMS["host-bound"][0]).aligned(tmp_path)
    recorded = not_none(replay_of(shared))
    replay = not_none(replay_of(shared, unprofiled_ns=0.7 * recorded.period_ns))
    assert replay.factor_identified
    assert replay.host_factor == pytest.approx(0.7, abs=0.01)
    assert replay.period_ns == pytest.approx(0.7 * recorded.period_ns, rel=0.01)
    assert replay.profiled_ns == recorded.period_ns


def test_device_bound_step_cannot_tell_what_the_profiler_added(tmp_path: Path) -> None:
    shared = simulate(PROGRAMS["device-bound"][0]).aligned(tmp_path)
    recorded = not_none(replay_of(shared))
    replay = not_none(replay_of(shared, unprofiled_ns=recorded.period_ns))
    assert not replay.factor_identified
    assert replay.host_factor < 1, "a cost per recorded event stands in for it"
    assert replay.period_ns == pytest.approx(recorded.period_ns, rel=0.001)


def test_run_without_launches_has_no_replay_and_one_without_steps_that_of_its_window(tmp_path: Path) -> None:
    bare = RankTrace(0)
    bare.step(0, 0, 1000)
    (tmp_path / "a").mkdir()
    assert replay_of(aligned(built_run(tmp_path / "a", [bare]))) is None
    unmarked = RankTrace(0)
    unmarked.kernel("gemm", at=1, start=5, end=9)
    (tmp_path / "b").mkdir()
    run = built_run(tmp_path / "b", [unmarked])
    replay = replay_of(aligned(run))
    assert replay is not None and len(replay.steps) == 1
    assert run.ranks[0].steps.is_window and run.ranks[0].steps.known == 0


def test_recorded_gloo_run_is_replayed() -> None:
    """Operators and gloo's threads: the replay comes near the recorded spans of the host's steps."""
    shared = aligned(load(GLOO, cache=False))
    replay = not_none(replay_of(shared))
    recorded = [(r.steps.end_ns[-1] - r.steps.start_ns[0]) / len(r.steps) for r in shared.run.ranks]
    assert replay.period_ns == pytest.approx(sum(recorded) / 2, rel=0.15)
    assert len(replay.meetings) == 12


LAUNCHES, HOST_US, DEVICE_US = 20, 100, 500
PROFILED_MS = LAUNCHES * HOST_US / 1000


def recorded(
    folder: Path, forward_ms: Sequence[float], *, device_us: float = DEVICE_US, program: Sequence[Op] = ()
) -> AlignedRun:
    """Return a device-bound job whose host works in forward, and whose log has forwards of such lengths."""
    job = simulate(program or [kernel(device_us, host_us=HOST_US) for _ in range(LAUNCHES)])
    (trace,) = job.traces
    marks = [e for e in trace.events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
    trace.events += [{**e, "name": "forward_pass", "dur": e["dur"]} for e in marks]
    write_log(folder, 0, log_lines({"forward_pass": ms, "outside": 10 - ms} for ms in forward_ms), ranks=1)
    return job.aligned(folder)


def test_quickest_forwards_tell_the_factor_of_a_device_bound_step(tmp_path: Path) -> None:
    """The host waits for the queue in most forwards; in three it does not, and takes 0.6 of its profiled time."""
    quick = 0.6 * PROFILED_MS
    shared = recorded(tmp_path, [9.0] * 10 + [quick, 1.1 * quick, 0.98 * quick])
    replay = replay_of(shared, unprofiled_ns=DEVICE_US * LAUNCHES * 1e3)
    assert replay is not None and not replay.factor_identified
    assert replay.host_factor == pytest.approx(0.6, abs=0.02)


def test_step_that_the_replay_misses_by_a_little_is_not_the_hosts_doing(tmp_path: Path) -> None:
    """Profiled, host and device take about as long; unprofiled the step is 5 % above the device's time."""
    quick, device_us = 0.6 * PROFILED_MS, 92.0
    shared = recorded(tmp_path, [9.0] * 10 + [quick, 1.1 * quick, 0.98 * quick], device_us=device_us)
    replay = replay_of(shared, unprofiled_ns=1.05 * device_us * LAUNCHES * 1e3)
    assert replay is not None and not replay.factor_identified
    assert replay.host_factor == pytest.approx(0.6, abs=0.02)


def test_nothing_is_the_profilers_where_plain_steps_take_longer_than_profiled_ones(tmp_path: Path) -> None:
    """The host decides a part of the step; by the log it takes 0.6 of its profiled time."""
    halves = [kernel(us, host_us=HOST_US) for us in (150, 10) for _ in range(LAUNCHES // 2)]
    program = [*halves[: LAUNCHES // 2], SYNC, *halves[LAUNCHES // 2 :]]
    shared = recorded(tmp_path, [9.0] * 10 + [0.6 * PROFILED_MS] * 3, program=program)
    profiled = not_none(replay_of(shared))
    for plain, factor in ((0.83, 0.6), (1.03, 1.0)):
        replay = replay_of(shared, unprofiled_ns=plain * profiled.period_ns)
        assert replay is not None and not replay.factor_identified
        assert replay.host_factor == pytest.approx(factor, abs=0.02)


EXPOSED_DDP = [kernel(300), collective(500), kernel(300), collective(900), kernel(300), WAIT, kernel(100), SYNC]


def path_of(folder: Path, *programs: Sequence[Op]) -> Row:
    replay = not_none(replay_of(simulate(*programs).aligned(folder)))
    path = critical_path(replay)
    assert path.ns_per_step == pytest.approx(replay.period_ns, rel=0.01), "the path covers the step"
    assert sum(s.pct for s in path.segments) == pytest.approx(100, abs=0.1)
    assert all(s.rank >= 0 for s in path.segments)
    return path


def shares(path: Row) -> dict[tuple[int, str], float]:
    out: dict[tuple[int, str], float] = defaultdict(float)
    for s in path.segments:
        out[(s.rank, s.what)] += s.pct
    return out


def test_path_runs_through_the_late_rank_alone(tmp_path: Path) -> None:
    path = path_of(tmp_path, EXPOSED_DDP, [kernel(4000), *EXPOSED_DDP[1:]], EXPOSED_DDP)
    by_rank = shares(path)
    assert by_rank[(1, "kernel")] > 50
    assert by_rank[(0, "kernel")] < 15
    assert by_rank[(2, "kernel")] < 15


def test_exposed_collectives_are_on_the_path_and_hidden_ones_are_not(tmp_path: Path) -> None:
    hidden = [kernel(300), collective(200), kernel(900), WAIT, kernel(100), SYNC]
    (tmp_path / "a").mkdir()
    assert (
        sum(v for (_, what), v in shares(path_of(tmp_path / "a", hidden, hidden)).items() if what == "collective") == 0
    )
    (tmp_path / "b").mkdir()
    exposed = [kernel(300), collective(900), kernel(200), WAIT, kernel(100), SYNC]
    share = sum(v for (_, what), v in shares(path_of(tmp_path / "b", exposed, exposed)).items() if what == "collective")
    assert share == pytest.approx(100 * 900 / 1335, abs=3)
