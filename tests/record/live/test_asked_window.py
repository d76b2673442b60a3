"""Which steps a window has that was asked for: steps that no rank has reached, or a reason why none."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from stepscope.contract.live import LIVE_FOLDER, REQUEST, RankStatus, Stall, WindowRequest, read_plan
from stepscope.record.live.live import WARMUP_STEPS, Live, Rules, plan_for

REQUESTED = WindowRequest("a", 5, "test")


def rules(**change: Any) -> Rules:
    usual: dict[str, Any] = {
        "world_size": 2,
        "free_step": 0,
        "number": 0,
        "look_s": 0.5,
        "since_last_s": None,
        "pause_s": 30.0,
    }
    return Rules(**{**usual, **change})


def said(rank: int, step: int, step_s: float = 0.1, stall: Stall | None = None) -> RankStatus:
    return RankStatus(rank, step, step_s, "a", stall)


def test_window_begins_after_the_furthest_rank_with_room_for_the_fastest() -> None:
    plan = plan_for(REQUESTED, {0: said(0, 100, 0.1), 1: said(1, 140, 0.05)}, rules(), waited_s=1.0)
    assert plan is not None and plan.refused is None
    room_steps = (1.0 + 4 * 0.5 + 1.0) / 0.05
    assert plan.first - plan.warmup == 141 + room_steps and plan.last - plan.first == 5
    assert plan.warmup == WARMUP_STEPS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"since_last_s": 12.0}, "the last window was over 12 s ago; ask again in 18 s"),
        ({"why_never": "the job runs under nsys"}, "the job runs under nsys"),
    ],
)
def test_refusals_say_why(change: dict[str, Any], words: str) -> None:
    plan = plan_for(REQUESTED, {0: said(0, 1), 1: said(1, 1)}, rules(**change), waited_s=0)
    assert plan is not None and plan.refused == words


class Rank:
    """A helper's watching side without a process, with what it tells its training process."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.told: list[Any] = []
        self.live = Live({"pause_s": 30.0}, rank=rank, world_size=2, tell=self.told.append)
        self.live.opens(folder)

    def looks(self) -> None:
        self.live._next_look_s = 0.0
        self.live.look()


def ask(folder: Path, id: str) -> None:
    (folder / LIVE_FOLDER).mkdir(exist_ok=True)
    (folder / LIVE_FOLDER / REQUEST).write_text(json.dumps({"id": id, "steps": 3}))


def outcome(folder: Path, rank: int, window: int) -> None:
    facts = {"ended": "running", "windows": [{"window": window, "name": "x", "status": "exported"}]}
    (folder / f"rank{rank:05}.facts.jsonl").write_text(json.dumps(facts))


def test_ranks_agree_by_files_alone(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, 0), Rank(tmp_path, 1)]
    for rank in ranks:
        rank.live.step({"step": 10, "dur_ns": 10**8, "profiled": False})
        rank.looks()
    assert not (tmp_path / LIVE_FOLDER).exists()  # nothing is written where nothing is asked
    ask(tmp_path, "a")
    ranks[0].looks()
    assert read_plan(tmp_path) is None
    ranks[1].looks()
    ranks[0].looks()
    ranks[1].looks()
    plan = read_plan(tmp_path)
    assert plan is not None and plan.first > 12
    assert [rank.told[-1]["window"]["first"] for rank in ranks] == [plan.first, plan.first]
    for rank in ranks:
        rank.looks()
    assert [len(rank.told) for rank in ranks] == [1, 1]  # each hears of it once
    outcome(tmp_path, 0, 0)
    ranks[0].looks()
    assert (tmp_path / LIVE_FOLDER / REQUEST).exists()
    ask(tmp_path, "instead")  # somebody took the first request back, but its window is planned
    ranks[0].looks()
    refused = read_plan(tmp_path)
    assert refused is not None and str(refused.refused).startswith("another window is under way, steps ")
    ask(tmp_path, "a")
    outcome(tmp_path, 1, 0)
    ranks[0].looks()
    assert not (tmp_path / LIVE_FOLDER / REQUEST).exists()
    ask(tmp_path, "b")
    ranks[1].looks()
    ranks[0].looks()
    plan = read_plan(tmp_path)
    assert plan is not None and plan.id == "b" and "ask again in" in str(plan.refused)
    for rank in ranks:
        rank.live.ends(closed=True)
    assert not (tmp_path / LIVE_FOLDER).exists()


def test_stall_is_written_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, now = Rank(tmp_path, 1), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for step in range(6):
        now += 1.0
        rank.live.step({"step": step, "dur_ns": 10**9, "profiled": False})
    now += 1.9
    rank.looks()
    assert rank.told == []
    now += 0.2  # two step times and a little
    rank.looks()
    assert rank.told == [{"where": True}]
    rank.live.where({"frames": [["/a/train.py", 3, "f"]], "collective": "all_reduce #1 of group 0, started"})
    found = json.loads((tmp_path / LIVE_FOLDER / "rank00001.jsonl").read_text())["stall"]
    assert found["step"] == 5 and found["usual_s"] == 1.0 and found["frames"] == [["/a/train.py", 3, "f"]]
    rank.looks()
    assert len(rank.told) == 1  # asked again only after as long again
    now += 2.2
    rank.looks()
    assert len(rank.told) == 2
    rank.live.step({"step": 6, "dur_ns": 6 * 10**9, "profiled": False})
    assert json.loads((tmp_path / LIVE_FOLDER / "rank00001.jsonl").read_text())["stall"] is None
