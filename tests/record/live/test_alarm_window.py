"""A job that pulls a profile window by itself: when, how often, for which reason, and not for noise."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.ranks.test_real_noise import LOADS, own_times

from stepscope.contract.live import LIVE_FOLDER, LOOKS, REGRESSION, REQUEST, STRAGGLER, Change, read_plan, read_request
from stepscope.contract.run_folder import steps_file
from stepscope.record.live.alarm_window import STEPS_PER_LOOK, AlarmWindow, JobAlarms, RaisedAlarm
from stepscope.record.live.live import Live

SETTINGS = {"on_alarm": 3, "pause_s": 30.0, "alarm_pause_s": 300.0, "max_alarm_windows": 2}
Own = Callable[[int, int], float]
"""own time in ms by rank and step"""


def noise_ms(step: int, rank: int) -> float:
    return ((step * 7919 + rank * 104729) % 101) / 101


def steps(numbers: Iterable[int], own_ms: Own, *, ranks: int = 2, **change: Any) -> dict[int, list[dict[str, Any]]]:
    """Return lines of ranks that wait for the latest of them, as gradients make them."""
    found: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(ranks)}
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


def risen(judge: JobAlarms, own_ms: Own, first: int, last: int, per_look: int = STEPS_PER_LOOK) -> list[RaisedAlarm]:
    looks = range(first, last, per_look)
    changes = (c for at in looks for c in judge.take(steps(range(at, at + per_look), own_ms)))
    return [change for change in changes if isinstance(change, RaisedAlarm)]


def test_late_rank_is_named_with_the_step_it_began_at() -> None:
    found = risen(JobAlarms(2), late_from(340), 95, 500)
    late = next(change for change in found if change.kind == STRAGGLER)
    assert late.rank == 1 and late.text.startswith("rank 1 is ")
    assert {change.kind for change in found} == {STRAGGLER, REGRESSION}  # all steps wait for it
    assert {change.since for change in found} == {340}
    assert not risen(JobAlarms(2), even, 100, 1000)


def change(kind: str, rank: int | None, since: int | None) -> Change:
    text = f"{kind} of {rank}"
    return Change(kind, rank, False, text) if since is None else RaisedAlarm(kind, rank, True, text, since)


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


class Rank:
    """A helper's watching side without a process, with what it tells its training process."""

    def __init__(self, folder: Path, rank: int, **settings: Any) -> None:
        self.told: list[Any] = []
        self.folder, self.rank = folder, rank
        self.live = Live({**SETTINGS, **settings}, rank=rank, world_size=2, tell=self.told.append)
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


def job(folder: Path, **settings: Any) -> list[Rank]:
    return [Rank(folder, 0, **settings), Rank(folder, 1, **settings)]


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
    """At most one alarm in 10,000 steps of two equal ranks: alone, and with other jobs on the cores."""
    rng = np.random.default_rng(3)
    risen_by_load = dict.fromkeys(LOADS, 0)
    for load in LOADS:
        for _ in range(4):
            own = np.array([from_real_jobs(load, 2500, rng) for _ in range(2)])
            risen_by_load[load] += len(risen(JobAlarms(2), own_of(own), 20, 2500))
    assert sum(risen_by_load.values()) <= 3, risen_by_load
