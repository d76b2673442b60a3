"""A running job from its logs: pace, lateness, alarms that rise and fall late, and hung ranks."""

from pathlib import Path
from typing import Any

import pytest
from tests.analyze.live.runs import line, write_facts
from tests.analyze.step_logs import write_log

from stepscope.analyze.live import explained, picture_of, states_of
from stepscope.contract.live import BAD, BETWEEN, GOOD, LOOKS, Alarms, Frame, Stall
from stepscope.run.light import RunningJob


def noise(step: int, rank: int) -> float:
    return ((step * 7919 + rank * 104729) % 101) / 101


def balanced(folder: Path, *, ranks: int = 4, steps: int = 60, late: int | None = None, by_ms: float = 0.0) -> Path:
    """Write logs of ranks that wait for the latest of them, as gradients make them."""
    for rank in range(ranks):
        lines = []
        for step in range(steps):
            own = [20 + noise(step, r) + (by_ms if r == late else 0.0) for r in range(ranks)]
            lines.append(line(step, max(own), max(own) - own[rank], memory={"host_bytes": 10**9 + rank}))
        write_log(folder, rank, lines)
    return folder


def test_pace_regions_and_memory(tmp_path: Path) -> None:
    picture = picture_of(RunningJob(balanced(tmp_path)).look())
    assert picture.step == 59 and len(picture.ranks) == 4
    assert picture.steps_per_s == pytest.approx(10.0, rel=0.02)  # a step begins every 100 ms in these logs
    assert picture.step_ns == pytest.approx(20.8e6, rel=0.02)
    assert picture.ranks[2].host_bytes == 10**9 + 2 and picture.ranks[2].device_bytes is None
    assert picture.ranks[0].regions_ns["forward_pass"] == pytest.approx(5.2e6, rel=0.02)
    assert picture.mfu is None and "not known yet" in str(picture.mfu_reason)


def test_mfu_takes_the_flops_that_the_ranks_counted(tmp_path: Path) -> None:
    balanced(tmp_path)
    for rank in range(4):
        write_facts(tmp_path, rank, "running", flops={"total": 5e12, "forward": 1e12, "by_operator": {}})
    picture = picture_of(RunningJob(tmp_path).look(), peak_tflops=60.0)
    assert picture.mfu == pytest.approx(4 * 3e12 * 10 / (60e12 * 4), rel=0.02)  # a backward is twice its forward


def test_late_rank_is_the_one_with_the_longest_own_time(tmp_path: Path) -> None:
    picture = picture_of(RunningJob(balanced(tmp_path, late=2, by_ms=8.0)).look())
    late = {rank.rank for rank in picture.ranks if rank.late is not None and rank.late.is_late}
    assert late == {2}
    assert states_of(picture)["straggler", 2][0] == BAD and states_of(picture)["straggler", 1][0] == GOOD


KEY = ("straggler", 2)


def test_alarm_rises_and_falls_after_looks_in_a_row() -> None:
    alarms = Alarms()
    sequence = [BAD, BAD, GOOD, *[BAD] * LOOKS, BETWEEN, GOOD, GOOD, BETWEEN, *[GOOD] * LOOKS]
    changes = [[c.rises for c in alarms.judge({KEY: (state, state)})] for state in sequence]
    assert changes == [[], [], [], *[[]] * (LOOKS - 1), [True], [], [], [], [], *[[]] * (LOOKS - 1), [False]]
    assert not alarms.up


def stall(frames: list[tuple[str, int, str]], sequence: int | None, **change: Any) -> Stall:
    usual: dict[str, Any] = {"step": 9, "for_s": 4.0, "usual_s": 1.0, "region": None, "group": "0", "silent": None}
    named = None if sequence is None else f"all_reduce #{sequence} of group 0, started"
    return Stall(
        **{**usual, "frames": tuple(Frame(*f) for f in frames), "collective": named, "sequence": sequence, **change}
    )


TORCH = ("/venv/lib/python3.11/site-packages/torch/_tensor.py", 5, "backward")


def test_rank_behind_the_others_did_not_arrive() -> None:
    stalls = {
        0: stall([TORCH, ("/home/u/train.py", 40, "main")], 7, region="gradient_sync"),
        1: stall([("/home/u/train.py", 12, "load")], 6),
    }
    lines = explained(stalls, 2)
    assert lines[0] == "no rank has taken a step for 4.0 s; the longest one before took 1.00 s"
    assert lines[1].startswith(
        "rank 1 did not arrive at all_reduce #7 of group 0, where the others wait; it is at train.py:12"
    )
    assert lines[2].startswith("rank 0: train.py:40 in main; in gradient_sync; newest collective")
    assert explained({}, 2) == []
