"""Steps that are only timed: what is taken, what ends the routine, and the regions that come out."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from stepscope.record.loop import routine as routine_module
from stepscope.record.loop.loop import StepEnds
from stepscope.record.loop.pattern import Event, Pattern
from stepscope.record.loop.routine import PERIOD_NS, PERIOD_WITH_WAITS_NS, PERIODS, Repeats, Routine

LOAD, LOADED, STEP, STEPPED, OTHER = 1, 2, 100, -100, 7


class Heard:
    """A routine of load and optimizer step, on a clock that is set by hand."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, steps: int = 1000, nvtx: Any = None, waits: bool = True
    ) -> None:
        self.now_ns = 0
        self.more = 1000  # steps that may only be timed after those that passed
        self.whole: list[tuple[int, dict[str, dict[str, int]]]] = []
        self.ends: list[Any] = []
        self.followed: list[tuple[int, int]] = []
        monkeypatch.setattr(routine_module, "perf_counter_ns", lambda: self.now_ns)
        edges = [
            ("begin", "data_loading"),
            ("end", "data_loading"),
            ("begin", "optimizer_step"),
            ("end", "optimizer_step"),
        ]
        tokens = [LOAD, LOADED, STEP, STEPPED]
        events = [Event(t, e, self._follow(t)) for t, e in zip(tokens, edges, strict=True)]
        self.pattern = Pattern(events)
        self.routine = Routine(whole_steps=self._whole, open_step=self._open)
        self.routine.begin(self.pattern, steps=steps, mark=lambda: f"end at {self.now_ns}", nvtx=nvtx, waits=waits)

    def _follow(self, token: Any) -> Callable[[int], None]:
        return lambda at_ns: self.followed.append((token, at_ns))

    def _whole(self, pattern: Pattern, times: list[int], ends: list[Any]) -> int:
        count = len(pattern.tokens)
        self.ends += ends
        self.whole += [(times[i + count], pattern.region_times(times, i)) for i in range(0, len(times) - 1, count)]
        return self.more

    def _open(self, events: Any, times: list[int]) -> None:
        for event, at_ns in zip(events, times, strict=True):
            event.follow(at_ns)

    def takes(self, *events: tuple[int, int]) -> list[bool]:
        found = []
        for at_ns, token in events:
            self.now_ns = at_ns
            found.append(self.routine.takes(token))
        return found


def test_whole_steps_have_their_regions_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert all(heard.takes((3, LOADED), (5, STEP), (9, STEPPED), (10, LOAD), (14, LOADED), (15, STEP), (16, STEPPED)))
    assert heard.takes((PERIOD_WITH_WAITS_NS, LOAD)) == [False]  # a quarter of a second is over: this step is followed
    assert heard.whole == [
        (10, {"data_loading": {"ns": 3, "n": 1}, "optimizer_step": {"ns": 4, "n": 1}}),
        (PERIOD_WITH_WAITS_NS, {"data_loading": {"ns": 4, "n": 1}, "optimizer_step": {"ns": 1, "n": 1}}),
    ]
    assert heard.ends == ["end at 10", f"end at {PERIOD_WITH_WAITS_NS}"]
    assert heard.followed == []
    assert not heard.routine.on


def test_a_thread_that_waits_for_nobody_lets_go_of_what_it_noted_before_it_follows_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = Heard(monkeypatch, waits=False)
    rest = (LOADED, STEP, STEPPED)
    for period in range(1, PERIODS + 1):
        assert all(heard.takes(*[(period * PERIOD_NS - 5, token) for token in rest]))
        assert len(heard.whole) == len(heard.ends) == period - 1
        assert heard.takes((period * PERIOD_NS, LOAD)) == [period < PERIODS]
    assert [end_ns for end_ns, _ in heard.whole] == [n * PERIOD_NS for n in range(1, PERIODS + 1)]
    assert heard.whole[1][1] == {
        "data_loading": {"ns": PERIOD_NS - 5, "n": 1},
        "optimizer_step": {"ns": 0, "n": 1},
    }
    assert heard.followed == [] and not heard.routine.on


def test_steps_that_nobody_may_only_time_are_followed_from_the_next_time_that_lines_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = Heard(monkeypatch, waits=False)
    assert all(heard.takes(*[(5, token) for token in (LOADED, STEP, STEPPED)]))
    heard.more = 0  # somebody asked for a window
    assert heard.takes((PERIOD_NS, LOAD)) == [False]
    assert not heard.routine.on and len(heard.whole) == 1


def test_an_unexpected_event_has_the_open_step_followed_with_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert heard.takes((3, LOADED), (5, STEP), (9, STEPPED), (10, LOAD), (14, LOADED), (15, OTHER))[-1] is False
    assert [end for end, _ in heard.whole] == [10]
    assert heard.followed == [(LOAD, 10), (LOADED, 14)]
    assert not heard.routine.on
    assert heard.takes((16, STEP)) == [False]


def test_another_beginning_than_usual_leaves_the_last_step_open(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert heard.takes((3, LOADED), (5, STEP), (9, STEPPED), (10, OTHER))[-1] is False
    assert heard.whole == []
    assert heard.followed == [(LOAD, 0), (LOADED, 3), (STEP, 5), (STEPPED, 9)]


def test_it_ends_before_a_step_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch, steps=2)
    one_step = [(1, LOADED), (2, STEP), (3, STEPPED), (4, LOAD)]
    assert heard.takes(*one_step) == [True] * 4
    assert heard.takes(*one_step)[-1] is False
    assert len(heard.whole) == 2


def test_another_threads_event_is_not_taken_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(heard.routine.takes(LOADED)))
    other.start()
    other.join()
    assert found == [False]
    assert heard.takes((1, LOADED), (2, STEP), (3, STEPPED), (4, LOAD)) == [True] * 4
    heard.routine.end()
    assert len(heard.whole) == 1


def test_a_forked_child_forgets_what_was_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    heard.routine.forget()
    heard.routine.end()
    assert (heard.whole, heard.followed) == ([], [])


def test_nvtx_ranges_are_pushed_and_popped_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvtx:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def range_push(self, name: str) -> None:
            self.seen.append(f"+{name}")

        def range_pop(self) -> None:
            self.seen.append("-")

    nvtx = Nvtx()
    heard = Heard(monkeypatch, nvtx=nvtx)
    heard.takes((1, LOADED), (2, STEP), (3, STEPPED), (4, LOAD), (5, LOADED))
    assert nvtx.seen == ["+data_loading", "-", "+optimizer_step", "-", "+data_loading", "-"]


def test_own_time_of_a_region_leaves_out_those_inside_and_ends_what_was_left_open() -> None:
    edges = [("begin", "a"), ("begin", "b"), None, ("begin", "c"), ("end", "b"), ("end", "a")]
    pattern = Pattern([Event(i, edge, lambda at_ns: None) for i, edge in enumerate(edges)])
    assert pattern.region_times([0, 2, 3, 7, 12, 20], 0) == {
        "a": {"ns": 2 + 8, "n": 1},
        "b": {"ns": 5, "n": 1},
        "c": {"ns": 5, "n": 1},
    }


def test_a_step_repeats_only_where_all_of_it_was_regular() -> None:
    repeats = Repeats()
    event = Event(LOAD, None, lambda at_ns: None)
    found = []
    for breaks in (False, False, False, True, False, False):
        repeats.add(event)
        if breaks:
            repeats.break_off()
        found.append(repeats.next_step())
    assert found == [False, False, True, False, False, True]  # before the first step ended nothing is known to be whole


def test_a_region_that_ends_after_the_one_around_it_has_ended_with_it() -> None:
    edges = [("begin", "backward"), ("begin", "optimizer"), ("end", "backward"), ("end", "optimizer")]
    pattern = Pattern([Event(token, edge, lambda _: None) for token, edge in enumerate(edges)])
    times = pattern.region_times([0, 10, 30, 70], 0)
    assert {name: region["ns"] for name, region in times.items()} == {"backward": 10, "optimizer": 20}


def test_a_step_that_may_have_ended_while_it_was_only_timed_keeps_the_moment() -> None:
    """One of two optimizers does not come any more: that is noticed later than the other one's step."""
    asked: list[int] = []

    class Recorder:
        def step_may_end(self, at_ns: int) -> int:
            asked.append(at_ns)
            return at_ns

    class OptimizerStep:
        def follow(self, at_ns: int) -> None:
            ends.step_may_end(expected=True)

    ends = StepEnds(lambda: None)
    ends.recorder = Recorder()
    ends._follow_open_step([OptimizerStep(), OptimizerStep()], [7, 8])
    ends.step_may_end(expected=True)
    assert asked[:2] == [7, 8] and asked[2] > 8
