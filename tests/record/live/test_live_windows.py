"""Profile windows of a running job, on request or by an alarm: which steps, how often, for which reason."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.ranks.test_log_stragglers import LOADS, own_times

from stepscope.contract.live import LIVE_FOLDER, LOOKS, REGRESSION, REQUEST, STRAGGLER, Change, read_plan, read_request
from stepscope.contract.run_folder import steps_file
from stepscope.record.live.alarm_window import STEPS_PER_LOOK, AlarmWindow, JobAlarms
from stepscope.record.live.live import Live


class Rank:
    """A helper's watching side without a process, with what it tells its training process."""

    def __init__(self, folder: Path, rank: int, **settings: Any) -> None:
        self.told: list[Any] = []
        self.folder, self.rank = folder, rank
        self.live = Live({"pause_s": 30.0, **settings}, rank=rank, world_size=2, tell=self.told.append)
        self.live.opens(folder)

    def takes(self, lines: list[dict[str, Any]]) -> None:
        with (self.folder / steps_file(self.rank)).open("a") as log:
            for line in lines:
                log.write(json.dumps(line) + "\n")
                self.live.step({"profiled": False, **line})
        self.looks()

    def looks(self) -> None:
        self.live._next_look_s = 0.0
        if self.live._alarm is not None:
            self.live._alarm._next_look_s = 0.0
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
    assert plan is not None and plan.id == "b" and "try again in" in str(plan.refused)
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


SETTINGS = {"on_alarm": 3, "alarm_pause_s": 300.0, "max_alarm_windows": 2}
Own = Callable[[int, int], float]


def noise_ms(step: int, rank: int) -> float:
    return ((step * 7919 + rank * 104729) % 101) / 101


Lines = dict[int, list[dict[str, Any]]]


def on_device(numbers: Iterable[int], own_ms: Own) -> Lines:
    """Return lines of two ranks that wait on the device, which is known as a mean every hundred steps.

    Most of their collectives is transfer, behind compute.
    """
    found: Lines = {0: [], 1: []}
    for step in numbers:
        longest = [max(own_ms(0, k), own_ms(1, k)) for k in range(max(20, step // 100 * 100 - 100), step // 100 * 100)]
        for rank in (0, 1):
            own = [own_ms(rank, k) for k in range(max(20, step // 100 * 100 - 100), step // 100 * 100)]
            transfer = 0.9 * own_ms(0, 20)
            known = {"device_ns": round(1e6 * float(transfer + np.mean(longest) - np.mean(own)))} if own else {}
            dur_ns = round(1e6 * max(own_ms(0, step), own_ms(1, step)))
            found[rank].append({"step": step, "dur_ns": dur_ns, "regions": {}, "collectives": known})
    return found


def steps(numbers: Iterable[int], own_ms: Own, *, ranks: int = 2, **change: Any) -> Lines:
    """Return lines of ranks that wait for the latest of them, as gradients make them."""
    found: Lines = {rank: [] for rank in range(ranks)}
    for step in numbers:
        own = [own_ms(rank, step) for rank in range(ranks)]
        for rank in range(ranks):
            sync = {"gradient_sync": {"ns": round(1e6 * (max(own) - own[rank])), "n": 1}}
            found[rank].append({"step": step, "dur_ns": round(1e6 * max(own)), "regions": sync, **change})
    return found


def even(rank: int, step: int) -> float:
    return 20 + noise_ms(step, rank)


def late_from(first: int) -> Own:
    return lambda rank, step: even(rank, step) + (8 if rank == 1 and step >= first else 0)


def risen(
    judge: JobAlarms, own_ms: Own, first: int, last: int, lines: Callable[[Iterable[int], Own], Lines] = steps
) -> list[Change]:
    looks = range(first, last, STEPS_PER_LOOK)
    changes = (c for at in looks for c in judge.take(lines(range(at, at + STEPS_PER_LOOK), own_ms)))
    return [change for change in changes if change.since is not None]


def test_rank_that_others_wait_for_on_the_device_raises_an_alarm() -> None:
    judge = JobAlarms(2)
    assert risen(judge, even, 20, 400, on_device) == []
    early = JobAlarms(2)  # only rank 0 has read its recorder so far
    for at in range(120, 400, STEPS_PER_LOOK):
        lines = on_device(range(at, at + STEPS_PER_LOOK), even)
        assert early.take({0: lines[0], 1: [{**line, "collectives": {}} for line in lines[1]]}) == []
    (alarm,) = (one for one in risen(judge, late_from(400), 400, 700, on_device) if one.kind == STRAGGLER)
    assert alarm.rank == 1
    assert alarm.text.startswith("rank 1 is 8.")


def change(kind: str, rank: int | None, since: int | None) -> Change:
    text = f"{kind} of {rank}"
    return Change(kind, rank, False, text) if since is None else Change(kind, rank, True, text, since)


def test_pulls_have_a_pause_and_an_end_and_wait_for_it() -> None:
    window = AlarmWindow(steps=3, world_size=2, pause_s=300.0, max_windows=2)
    assert window.pull(0.0) is None
    window.hear([change(STRAGGLER, 1, 7), change(REGRESSION, None, 9)])
    first = window.pull(0.0)
    assert first is not None and first.steps == 3
    assert first.by == "alarm: straggler of 1 since step 7; regression of None since step 9" and first.since == 9
    assert window.pull(1000.0) is None  # alarms that stay up pull once
    window.hear([change(STRAGGLER, 0, 20)])
    window.hear([change(STRAGGLER, 0, None)])
    window.hear([change(STRAGGLER, 2, 30)])
    assert window.pull(299.0) is None
    second = window.pull(300.0)
    assert second is not None and second.by == "alarm: straggler of 2 since step 30"
    window.hear([change(STRAGGLER, 3, 40)])
    assert window.pull(1e6) is None  # that was the last of the job


def job(folder: Path, **settings: Any) -> list[Rank]:
    return [Rank(folder, rank, **{**SETTINGS, **settings}) for rank in (0, 1)]


def train(ranks: list[Rank], own_ms: Own, first: int, last: int) -> None:
    for at in range(first, last, STEPS_PER_LOOK):
        lines = steps(range(at, at + STEPS_PER_LOOK), own_ms)
        for rank in reversed(ranks):
            rank.takes(lines[rank.rank])


def test_alarm_asks_for_a_window_that_all_ranks_hear_of(tmp_path: Path) -> None:
    ranks = job(tmp_path)
    train(ranks, even, 20, 200)
    assert not (tmp_path / LIVE_FOLDER).exists()
    train(ranks, late_from(200), 200, 200 + (LOOKS + 1) * STEPS_PER_LOOK)
    for rank in (1, 0, 1):
        ranks[rank].looks()
    plan = read_plan(tmp_path)
    assert plan is not None and plan.refused is None and plan.last - plan.first == 3
    assert str(plan.by).startswith("alarm: rank 1 is 7.") and "since step 200" in str(plan.by)
    told = [[message["window"] for message in rank.told if "window" in message] for rank in ranks]
    assert told[0] == told[1] and [window["first"] for window in told[0]] == [plan.first]
    assert told[0][0]["by"] == plan.by and told[0][0]["since"] == plan.since == 200


def test_alarm_waits_while_somebody_else_has_asked(tmp_path: Path) -> None:
    ranks = job(tmp_path)
    train(ranks, even, 20, 200)
    (tmp_path / LIVE_FOLDER).mkdir()
    (tmp_path / LIVE_FOLDER / REQUEST).write_text(json.dumps({"id": "mine", "steps": 2, "by": "somebody"}))
    train(ranks, late_from(200), 200, 300)
    request = read_request(tmp_path)
    assert request is not None and request.by == "somebody"


@pytest.mark.parametrize(
    "settings", [{"on_alarm": None}, {"why_no_window": "the job runs under nsys"}, {"free_step": 10_000}]
)
def test_no_window_unless_asked_for_and_possible(tmp_path: Path, settings: dict[str, Any]) -> None:
    ranks = job(tmp_path, **settings)
    train(ranks, even, 20, 200)
    train(ranks, late_from(200), 200, 400)
    assert not (tmp_path / LIVE_FOLDER).exists()


def from_real_jobs(load: str, num_steps: int, rng: np.random.Generator) -> np.ndarray:
    """Return own times of one rank, stretches of real jobs in a row."""
    jobs = own_times()[load]
    found: list[np.ndarray] = []
    while sum(len(one) for one in found) < num_steps:
        found.append(jobs[rng.integers(len(jobs))])
    return np.concatenate(found)[:num_steps]


def own_of(times: np.ndarray) -> Own:
    return lambda rank, step: float(times[rank, step - 20])


@pytest.mark.slow
def test_noise_of_a_loaded_machine_pulls_next_to_nothing() -> None:
    """At most 4 alarms in 30,000 steps of two equal ranks; all of them with other jobs on the cores."""
    rng = np.random.default_rng(3)
    risen_by_load = dict.fromkeys(LOADS, 0)
    for load in LOADS:
        for _ in range(2):
            own = np.array([from_real_jobs(load, 2500, rng) for _ in range(2)])
            for lines in (steps, on_device):
                risen_by_load[load] += len(risen(JobAlarms(2), own_of(own), 20, 2480, lines))
    assert sum(risen_by_load.values()) <= 4, risen_by_load
