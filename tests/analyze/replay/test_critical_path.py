"""The critical path names what decides the step; what is beside it has slack."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.analyze.simulate import SYNC, WAIT, Op, collective, kernel, simulate

from stepscope.analyze.replay.critical_path import CriticalPath, critical_path
from stepscope.analyze.replay.replay import replay_of

DDP = [kernel(300), collective(500), kernel(300), collective(900), kernel(300), WAIT, kernel(100), SYNC]


def path_of(folder: Path, *programs: Sequence[Op]) -> CriticalPath:
    replay = replay_of(simulate(*programs).aligned(folder))
    assert replay is not None
    path = critical_path(replay)
    assert path.ns_per_step == pytest.approx(replay.period_ns, rel=0.01), "the path covers the step"
    assert sum(s.pct for s in path.segments) == pytest.approx(100, abs=0.1)
    assert all(s.rank >= 0 for s in path.segments)
    return path


def shares(path: CriticalPath) -> dict[tuple[int, str], float]:
    out: dict[tuple[int, str], float] = defaultdict(float)
    for s in path.segments:
        out[(s.rank, s.what)] += s.pct
    return out


def test_host_bound_step_is_the_hosts(tmp_path: Path) -> None:
    path = path_of(tmp_path, [kernel(10, host_us=100) for _ in range(10)])
    assert (path.segments[0].what, path.segments[0].name) == ("host", "operators, launches and python")
    assert path.segments[0].pct > 95


def test_device_bound_step_is_the_kernels(tmp_path: Path) -> None:
    path = path_of(tmp_path, [kernel(500, name="big"), kernel(100, name="small"), kernel(500, name="big")])
    assert (path.segments[0].what, path.segments[0].name) == ("kernel", "big")
    assert path.segments[0].ns_per_step == pytest.approx(1e6, rel=0.01)
    assert path.segments[1].name == "small"
    assert path.slack_ns[0] == pytest.approx(0, abs=2000)


def test_path_runs_through_the_late_rank_alone(tmp_path: Path) -> None:
    path = path_of(tmp_path, DDP, [kernel(4000), *DDP[1:]], DDP)
    by_rank = shares(path)
    assert by_rank[(1, "kernel")] > 50
    assert by_rank[(0, "kernel")] < 15
    assert by_rank[(2, "kernel")] < 15
    assert path.slack_ns[0] > 500_000, "rank 0 could compute for longer and nobody would notice"


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
