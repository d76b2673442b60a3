"""Steps that are only timed: what is taken, what ends the routine, and the regions that come out."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from stepscope.record.loop import routine as routine_module
from stepscope.record.loop.routine import Event, Pattern, Repeats, Routine

LOAD, LOADED, STEP, STEPPED, OTHER = 1, 2, 100, -100, 7
EDGES = [("begin", "data_loading"), ("end", "data_loading"), ("begin", "optimizer_step"), ("end", "optimizer_step")]
PERIOD_NS, PERIOD_WITH_WAITS_NS = 500_000_000, 250_000_000


class Heard:
    """A routine of load and optimizer step, on a clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, waits: bool = True, **settings: Any) -> None:
        self.now_ns = 0
        self.more = 1000  # steps that may only be timed after those that passed
        self.whole: list[tuple[int, dict[str, dict[str, int]]]] = []
        self.followed: list[tuple[int, int]] = []
        monkeypatch.setattr(routine_module, "perf_counter_ns", lambda: self.now_ns)
        tokens = [LOAD, LOADED, STEP, STEPPED]
        pattern = Pattern([Event(t, e, self._follow(t)) for t, e in zip(tokens, EDGES, strict=True)])
        self.routine = Routine(whole_steps=self._whole, open_step=self._open)
        self.routine.begin(pattern, mark=lambda: self.now_ns, waits=waits, **{"steps": 1000, **settings})

    def _follow(self, token: Any) -> Callable[[int], None]:
        return lambda at_ns: self.followed.append((token, at_ns))

    def _whole(self, pattern: Pattern, times: list[int], ends: list[Any]) -> int:
        self.whole += list(zip(ends, pattern.steps(times, []), strict=True))
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
    assert heard.followed == [] and not heard.routine.on


def test_without_waits_times_are_processed_before_a_step_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch, waits=False)
    for period in (1, 2):
        assert all(heard.takes(*[(period * PERIOD_NS - 5, token) for token in (LOADED, STEP, STEPPED)]))
        assert heard.takes((period * PERIOD_NS, LOAD)) == [period < 2]
        assert len(heard.whole) == period
    heard = Heard(monkeypatch, waits=False)
    assert all(heard.takes(*[(5, token) for token in (LOADED, STEP, STEPPED)]))
    heard.more = 0  # a window was requested
    assert heard.takes((PERIOD_NS, LOAD)) == [False] and not heard.routine.on


def test_an_unexpected_event_has_the_open_step_followed_with_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert heard.takes((3, LOADED), (5, STEP), (9, STEPPED), (10, LOAD), (14, LOADED), (15, OTHER))[-1] is False
    assert [end for end, _ in heard.whole] == [10]
    assert heard.followed == [(LOAD, 10), (LOADED, 14)]
    assert heard.takes((16, STEP)) == [False]
    heard = Heard(monkeypatch)
    assert heard.takes((3, LOADED), (5, STEP), (9, STEPPED), (10, OTHER))[-1] is False
    assert (heard.whole, heard.followed) == ([], [(LOAD, 0), (LOADED, 3), (STEP, 5), (STEPPED, 9)])


def test_it_ends_before_a_step_that_is_to_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch, steps=2)
    one_step = [(1, LOADED), (2, STEP), (3, STEPPED), (4, LOAD)]
    assert heard.takes(*one_step) == [True] * 4
    assert heard.takes(*one_step)[-1] is False and len(heard.whole) == 2


def test_events_of_another_thread_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(heard.routine.takes(LOADED)))
    other.start()
    other.join()
    assert found == [False]
    assert heard.takes((1, LOADED), (2, STEP), (3, STEPPED), (4, LOAD)) == [True] * 4


def test_nvtx_ranges_are_pushed_and_popped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvtx:
        seen: ClassVar[list[str]] = []
        range_push = staticmethod(lambda name: Nvtx.seen.append(f"+{name}"))
        range_pop = staticmethod(lambda: Nvtx.seen.append("-"))

    heard = Heard(monkeypatch, nvtx=Nvtx)
    heard.takes((1, LOADED), (2, STEP), (3, STEPPED), (4, LOAD), (5, LOADED))
    assert Nvtx.seen == ["+data_loading", "-", "+optimizer_step", "-", "+data_loading", "-"]


@pytest.mark.parametrize(
    ("edges", "times", "expected"),
    [
        (["+a", "+b", "", "+c", "-b", "-a"], [0, 2, 3, 7, 12, 20], {"a": 2 + 8, "b": 5, "c": 5}),
        (["+a", "+b", "-a", "-b"], [0, 10, 30, 70], {"a": 10, "b": 20}),
    ],
)
def test_own_time_of_a_region_excludes_those_inside(
    edges: list[str], times: list[int], expected: dict[str, int]
) -> None:
    pairs = [({"+": "begin", "-": "end"}[e[0]], e[1]) if e else None for e in edges]
    pattern = Pattern([Event(i, edge, lambda at_ns: None) for i, edge in enumerate(pairs)])
    assert pattern.region_times(times, 0) == {name: {"ns": ns, "n": 1} for name, ns in expected.items()}


def test_a_step_repeats_only_where_all_of_it_was_regular() -> None:
    repeats = Repeats()
    found = []
    for breaks in (False, False, False, True, False, False):
        repeats.add(Event(LOAD, None, lambda at_ns: None))
        if breaks:
            repeats.break_off()
        found.append(repeats.next_step())
    assert found == [False, False, True, False, False, True]  # the first step is never known to be whole
