"""Steps that go like those before them: an event that was expected costs one reading of the clock.

Following the loop takes some hundred calls of Python per step, and after a step's work none of them is in the
processor's caches. Once a step had the same events in the same order as the one before it, those that follow are only
timed, and what happened is worked out for many of them at once:

    events of a step   load begins, load ends, forward begins, forward ends, backward begins, ... optimizer ends
    noted              0 3 | 5 20 | 20 60 | 61 70     0 3 | ...           times in one list, nothing else
    worked out         data_loading 3 - 0, forward_pass 20 - 5, ...; a step's end is the next one's first event

Four times a second a step is followed as ever: it has the look at memory and collectives, and the lines of the log
leave. An event that was not expected (evaluation, a batch that did not come, a region of the script's own) ends the
routine at once: the events of the open step are then followed after all, with the times they had.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from stepscope.record.hooks.loop.parts import BACKWARD, PART
from stepscope.record.hooks.loop.threads import is_of_autograd
from stepscope.record.steps.regions import RegionTimes
from stepscope.record.window.interruptions import Interruption

PERIOD_NS = 250_000_000
SHORT_STEP_NS = 100_000_000
"""longer ones are all followed: what that takes is nothing to them"""
_MAX_EVENTS = 4096  # of a step


@dataclass(frozen=True, slots=True)
class Event:
    """Something the training loop did: `token` is what it is recognised by, `edge` the region's edge that it is.

    `follow(at_ns)` follows it, as having happened then; it holds no tensor alive.
    """

    token: int
    edge: tuple[str, str] | None  # ("begin" or "end", name of the region)
    follow: Callable[[int], Any]


class Pattern:
    """The events of one step, and which times make which region: `{name: (number, [(begin, end), ...])}`."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = tuple(events)
        self.tokens = tuple(event.token for event in events)
        edges = [event.edge for event in events]
        self.regions = _own_time(edges)
        self.open_after = _open_after(edges)  # the regions open after each event, outermost first

    def ranges(self, nvtx: Any) -> tuple[Callable[[], None], ...]:
        """Return what each event does to NVTX's stack of ranges."""
        acts: list[Callable[[], None]] = []
        open_regions: list[str] = []
        for edge in (event.edge for event in self.events):
            if edge is None:
                acts.append(_nothing)
            elif edge[0] == "begin":
                open_regions.append(edge[1])
                acts.append(partial(nvtx.range_push, edge[1]))
            elif edge[1] not in open_regions:
                acts.append(_nothing)
            else:
                closed = len(open_regions) - _last_index(open_regions, edge[1])
                del open_regions[-closed:]
                acts.append(nvtx.range_pop if closed == 1 else partial(_several, nvtx.range_pop, closed))
        return tuple(acts)

    def region_times(self, times: Sequence[int], first: int) -> RegionTimes:
        """Return the regions of the step whose events begin at `times[first]`."""
        return {
            name: {"ns": sum([times[first + end] - times[first + begin] for begin, end in spans]), "n": number}
            for name, (number, spans) in self.regions.items()
        }

    def interrupt(self, steps: Sequence[RegionTimes], times: Sequence[int], by: Interruption) -> None:
        """Give an interruption's time, in one of the steps that `times` are of, to a region of its own."""
        at = min(max(bisect_right(times, by.begin_ns) - 1, 0), len(times) - 2)
        step, event = divmod(at, len(self.tokens))
        inner = self.open_after[event]
        if inner:
            steps[step][inner[-1]]["ns"] = max(0, steps[step][inner[-1]]["ns"] - by.own_ns)
        own = steps[step].setdefault(by.name, {"ns": 0, "n": 0})
        own["ns"] += by.own_ns
        own["n"] += 1


class Routine:
    """Takes the expected events. All is done on the training thread.

    `whole_steps(pattern, times, ends)` hears of steps that were only timed: `times` of all their events and of the
    last one's end, `ends` what `mark()` returned at the end of each. `open_step(events, times)` hears of one in which
    the next event is not what was expected.
    """

    def __init__(
        self,
        *,
        whole_steps: Callable[[Pattern, list[int], list[Any]], None],
        open_step: Callable[[Sequence[Event], list[int]], None],
    ) -> None:
        self.on = False
        self._whole_steps = whole_steps
        self._open_step = open_step
        self._pattern = Pattern(())
        self._tokens: tuple[int | None, ...] = ()  # and None where the step ends
        self._inside: tuple[int, ...] = ()  # the parts open before each token
        self._at = 0
        self._thread = 0
        self._times: list[int] = []
        self._ends: list[Any] = []
        self._mark: Callable[[], Any] = _nothing
        self._ranges: tuple[Callable[[], None], ...] = ()
        self._until_ns = 0
        self._steps_left = 0

    def begin(self, pattern: Pattern, *, steps: int, mark: Callable[[], Any], nvtx: Any = None) -> None:
        """Begin with the first event of a step, which happens now, for so many steps at most."""
        now_ns = perf_counter_ns()
        self._pattern, self._tokens = pattern, (*pattern.tokens, None)
        self._inside = (0, *[sum({PART.get(name, 0) for name in names}) for names in pattern.open_after])
        self._thread = get_ident()
        self._times, self._ends, self._at = [now_ns], [], 1
        self._mark, self._until_ns, self._steps_left = mark, now_ns + PERIOD_NS, steps - 1
        self._ranges = pattern.ranges(nvtx) if nvtx is not None else ()
        self.on = True
        if self._ranges:
            self._ranges[0]()

    def expects(self, token: int) -> bool:
        """Return whether this is the expected event, without taking it."""
        return self._tokens[self._at] == token

    def takes(self, token: int, hidden_inside: int = 0) -> bool:
        """Return whether this is the expected event: its time is noted then, and nothing else is to be done.

        One that does not count inside a part that is open now (`hidden_inside`), and one of another thread, leave the
        routine as it is: see `ignores`. Autograd's own threads speak for the training thread during a backward.
        """
        if not self.on:
            return False
        at = self._at
        thread = get_ident()
        if thread != self._thread and not (self._inside[at] & BACKWARD and is_of_autograd(thread)):
            return False
        if self._tokens[at] != token:
            if self._inside[at] & hidden_inside:
                return False
            return self._step_ends(token) if self._tokens[at] is None else self._not_expected()
        self._times.append(perf_counter_ns())
        self._at = at + 1
        if self._ranges:
            self._ranges[at]()
        return True

    def inside(self) -> int:
        """Return the parts that are open now."""
        return self._inside[self._at]

    def ignores(self, part: int) -> bool:
        """Return whether an event that was not taken means nothing: the routine goes on without it.

        A backward on another thread may mean that training moved there.
        """
        return self.on and (part != BACKWARD or get_ident() == self._thread)

    def is_elsewhere(self) -> bool:
        """Return whether the routine goes on and this is another thread, which does not work for it."""
        thread = get_ident()
        return self.on and thread != self._thread and not is_of_autograd(thread)

    def end(self) -> None:
        """Work out what was noted; the events of an open step are followed."""
        if not self.on:
            return
        self.on = False
        count = len(self._pattern.tokens)
        whole = (len(self._times) - 1) // count
        if whole:
            self._whole_steps(self._pattern, self._times[: whole * count + 1], self._ends)
        open_times = self._times[whole * count :]
        self._open_step(self._pattern.events[: len(open_times)], open_times)

    def forget(self) -> None:
        """End without a word: this is a forked child, and what was noted is its parent's."""
        self.on = False

    def _step_ends(self, token: int) -> bool:
        """Return whether the next step begins with this event and is only timed as well."""
        if self._tokens[0] != token:
            return self._not_expected()
        now_ns = perf_counter_ns()
        self._times.append(now_ns)
        self._ends.append(self._mark())
        self._at = 1
        if now_ns < self._until_ns and self._steps_left > 0:
            self._steps_left -= 1
            if self._ranges:
                self._ranges[0]()
            return True
        self.on = False
        self._whole_steps(self._pattern, self._times, self._ends)
        return False

    def _not_expected(self) -> bool:
        """Return False, with the routine ended."""
        self.end()
        return False


def _nothing() -> None:
    pass


def _several(act: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        act()


def _last_index(names: list[str], name: str) -> int:
    return len(names) - 1 - names[::-1].index(name)


def _open_after(edges: Sequence[tuple[str, str] | None]) -> tuple[tuple[str, ...], ...]:
    """Return the regions open after each event, outermost first."""
    out: list[tuple[str, ...]] = []
    now: tuple[str, ...] = ()
    for edge in edges:
        if edge is not None:
            what, name = edge
            if what == "begin":
                now = (*now, name)
            elif name in now:  # else it was closed together with one around it
                now = now[: _last_index(list(now), name)]
        out.append(now)
    return tuple(out)


def _own_time(edges: Sequence[tuple[str, str] | None]) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    """Return per region how often it begins and the spans between events in which it is the innermost one."""
    found: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    open_regions: list[str] = []
    since = 0
    for at, edge in enumerate(edges):
        if edge is None:
            continue
        what, name = edge
        if open_regions:
            found[open_regions[-1]][1].append((since, at))
        since = at
        if what == "begin":
            open_regions.append(name)
            number, spans = found.get(name, (0, []))
            found[name] = (number + 1, spans)
        elif name in open_regions:  # else it was closed together with one around it: two threads that train at once
            while open_regions.pop() != name:
                pass
    return found


class Repeats:
    """Which events the step under way had so far, and whether it goes like the last one."""

    def __init__(self) -> None:
        self.pattern: Pattern | None = None  # of the last step, where it was a regular one
        self._events: list[Event] | None = None  # None: this step is not regular

    def add(self, event: Event) -> None:
        """Take note of an event that was followed."""
        if self._events is not None:
            self._events.append(event)
            if len(self._events) > _MAX_EVENTS:
                self._events = None

    def break_off(self) -> None:
        """Something happened in this step that may not happen in the next."""
        self._events = None

    def next_step(self) -> bool:
        """Begin a step; return whether the one that ended had the same events as the one before it."""
        events, self._events = self._events, []
        if not events:
            self.pattern = None
            return False
        if self.pattern is not None and self.pattern.tokens == tuple([event.token for event in events]):
            return True
        self.pattern = Pattern(events)
        return False
