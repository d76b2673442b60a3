"""Steps that repeat the previous one: an expected event costs one clock reading.

Following the loop takes some hundred calls of Python per step, and after a step's work none of them is in the
processor's caches. Once a step had the same events in the same order as the one before it, the next ones are only
timed, and the regions of many of them are computed at once:

    events of a step   load begins, load ends, forward begins, forward ends, backward begins, ... optimizer ends
    recorded           0 3 | 5 20 | 20 60 | 61 70     0 3 | ...           times in one list, nothing else
    computed           data_loading 3 - 0, forward_pass 20 - 5, ...; a step ends with the first event of the next

The times are processed twice a second; once a second a step is followed, with its memory and collectives. Where the
training thread waits for other ranks, a wait that only a followed step shows, both happen four times a second. An
unexpected event (evaluation, the end of a loader, a region of the script) ends the routine: the events of the open
step are then followed with the times they had.
"""

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from stepscope.contract import step_line as regions
from stepscope.contract.step_line import RegionTimes
from stepscope.record.window.guards import Interruption

# Tokens identify events by whole numbers, compared once per event. Optimizers have larger ones: their addresses.
DATA_BEGINS, DATA_ENDS, NO_BATCH, BACKWARD_BEGINS, BACKWARD_ENDS, SYNC_BEGINS, SCHEDULE_BEGINS = range(1, 8)
FORWARD_ENDS, FORWARD_BEGINS = 8, 9  # up to 12: with gradients or without, of a trained model or another one
LOADER_BEGINS, LOADER_ENDS, ROW_BEGINS, QUIET_ROW_BEGINS, ROW_ENDS, STEPS_ROW_ENDS = range(13, 19)
STEPS_ROW = 1  # added to an optimizer's token where it begins a row

# The parts of a training step are bits.
DATA, FORWARD, BACKWARD, OPTIMIZER, LOADER, SAVING = 1, 2, 4, 8, 16, 32
QUIET = 64  # a row of forwards without gradients
WORK = DATA | FORWARD | BACKWARD
REGION = {
    DATA: regions.DATA_LOADING,
    FORWARD: regions.FORWARD,
    BACKWARD: regions.BACKWARD,
    OPTIMIZER: regions.OPTIMIZER,
    LOADER: regions.LOADER_START,
    SAVING: regions.CHECKPOINT,
}
_PART = {name: part for part, name in REGION.items()}

_PERIOD_NS = 500_000_000
_PERIODS = 2  # until a step is followed
_PERIOD_WITH_WAITS_NS = 250_000_000
_MAX_EVENTS = 4096  # of a step
_NO_INTERRUPTION: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the training loop: its token, and the region's edge: ("begin" or "end", name of the region).

    `follow(at_ns)` follows it as of that time; it holds no tensor alive.
    """

    token: int
    edge: tuple[str, str] | None
    follow: Callable[[int], Any]


class Pattern:
    """The events of one step, and which times make which region: `{name: (number, [(begin, end), ...])}`."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = tuple(events)
        self.tokens = tuple(event.token for event in events)
        self.open_after: list[tuple[str, ...]] = []  # the regions open after each event, outermost first
        self._regions: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        open_regions: list[str] = []
        since = 0
        for at, event in enumerate(events):
            if event.edge is not None:
                what, name = event.edge
                if open_regions:
                    self._regions[open_regions[-1]][1].append((since, at))
                since = at
                if what == "begin":
                    number, spans = self._regions.get(name, (0, []))
                    self._regions[name] = (number + 1, spans)
                    open_regions.append(name)
                elif name in open_regions:  # else it was closed with one around it: two threads that train at once
                    while open_regions.pop() != name:
                        pass
            self.open_after.append(tuple(open_regions))
        once = [(name, *spans[0]) for name, (number, spans) in self._regions.items() if number == len(spans) == 1]
        self._once = once if len(once) == len(self._regions) else None

    def ranges(self, nvtx: Any) -> tuple[Callable[[], None], ...]:
        """Return what each event does to NVTX's stack of ranges."""
        acts: list[Callable[[], None]] = []
        depth = 0
        for names in self.open_after:
            closed, depth = depth - len(names), len(names)
            if closed < 0:
                acts.append(partial(nvtx.range_push, names[-1]))
            else:
                acts.append(nvtx.range_pop if closed == 1 else partial(_repeat, nvtx.range_pop, closed))
        return tuple(acts)

    def region_times(
        self, times: Sequence[int], first: int, interrupted_ns: Mapping[int, int] = _NO_INTERRUPTION
    ) -> RegionTimes:
        """Return the regions of the step whose events begin at `times[first]`.

        `interrupted_ns` is how long the thread was interrupted after an event, which is no time of a region.
        """
        if self._once is not None and not interrupted_ns:  # the common case, in a third of the time
            return {name: {"ns": times[first + end] - times[first + begin], "n": 1} for name, begin, end in self._once}
        found = {}
        for name, (number, spans) in self._regions.items():
            ns = sum([times[first + end] - times[first + begin] for begin, end in spans])
            if interrupted_ns:
                ns -= sum(interrupted_ns.get(first + at, 0) for begin, end in spans for at in range(begin, end))
            found[name] = {"ns": max(0, ns), "n": number}
        return found

    def steps(self, times: Sequence[int], interruptions: Sequence[Interruption]) -> list[RegionTimes]:
        """Return the regions of the steps at `times`; each kind of interruption is a separate region."""
        count, lost = len(self.tokens), dict[int, int]()
        placed = [(min(max(bisect_right(times, i.begin_ns) - 1, 0), len(times) - 2), i) for i in interruptions]
        for at, by in placed:
            lost[at] = lost.get(at, 0) + by.own_ns
        steps = [self.region_times(times, first, lost) for first in range(0, len(times) - 1, count)]
        for at, by in placed:
            own = steps[at // count].setdefault(by.name, {"ns": 0, "n": 0})
            own["ns"] += by.own_ns
            own["n"] += 1
        return steps


def _repeat(act: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        act()


class Routine:
    """Takes the expected events. All is done on the training thread.

    The loop's methods call it first. Hooks that know their token call it directly where it is `expected`: each Python
    function that is called in between costs one to two microseconds in a step of a real job.

    `whole_steps(pattern, times, ends)` is called for steps that were only timed: `times` of all their events and the
    last one's end, `ends` what `mark()` returned at the end of each; it returns how many more may be.
    `open_step(events, times)` is called for one in which the next event is not the expected one.
    """

    def __init__(
        self,
        *,
        whole_steps: Callable[[Pattern, list[int], list[Any]], int],
        open_step: Callable[[Sequence[Event], list[int]], None],
    ) -> None:
        self.on = False
        self.expected: int | None = None  # the event that comes next, None where the step ends; read without a call
        self._whole_steps = whole_steps
        self._open_step = open_step
        self._pattern = Pattern(())
        self._tokens: tuple[int | None, ...] = ()  # and None where the step ends
        self._inside: tuple[int, ...] = ()  # the parts open before each token
        self._at = 0
        self._thread = 0
        self._times: list[int] = []
        self._ends: list[Any] = []
        self._mark: Callable[[], Any] = lambda: None
        self._ranges: tuple[Callable[[], None], ...] = ()
        self._until_ns = self._period_ns = 0
        self._periods_left = 0
        self._steps_left = 0

    def begin(
        self, pattern: Pattern, *, steps: int, mark: Callable[[], Any], nvtx: Any = None, waits: bool = False
    ) -> None:
        """Begin with the first event of a step, which happens now, for at most `steps` steps.

        `waits`: this thread waits for other ranks, and a step is to be followed at the end of every period.
        """
        now_ns = perf_counter_ns()
        self._pattern, self._tokens = pattern, (*pattern.tokens, None)
        self._inside = (0, *[sum({_PART.get(name, 0) for name in names}) for names in pattern.open_after])
        self._thread = get_ident()
        self._times, self._ends, self._at = [now_ns], [], 1
        self.expected = self._tokens[1]
        self._mark, self._steps_left = mark, steps - 1
        self._period_ns, self._periods_left = (_PERIOD_WITH_WAITS_NS, 0) if waits else (_PERIOD_NS, _PERIODS - 1)
        self._until_ns = now_ns + self._period_ns
        self._ranges = pattern.ranges(nvtx) if nvtx is not None else ()
        self.on = True
        if self._ranges:
            self._ranges[0]()

    def takes(self, token: int, hidden_inside: int = 0) -> bool:
        """Return whether this is the expected event: its time is then noted, and nothing else has to be done.

        One that does not count inside a part that is open now (`hidden_inside`), and one of another thread, leave the
        routine unchanged: see `ignores`. Autograd's own threads act for the training thread during a backward.
        """
        if not self.on:
            return False
        at = self._at
        thread = get_ident()
        if thread != self._thread and not (self._inside[at] & BACKWARD and is_of_autograd(thread)):
            return False
        if self.expected != token:
            if self._inside[at] & hidden_inside:
                return False
            if self.expected is None and self._tokens[0] == token:
                return self._step_ends()
            self.end()
            return False
        self._times.append(perf_counter_ns())
        self._at = at + 1
        self.expected = self._tokens[at + 1]
        if self._ranges:
            self._ranges[at]()
        return True

    def inside(self) -> int:
        """Return the parts that are open now."""
        return self._inside[self._at]

    def ignores(self, part: int) -> bool:
        """Return whether an event that was not taken is irrelevant: the routine continues without it.

        A backward on another thread may mean that training moved there.
        """
        return self.on and (part != BACKWARD or get_ident() == self._thread)

    def is_elsewhere(self) -> bool:
        """Return whether the routine is on and this is another thread, which does not work for it."""
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

    def _step_ends(self) -> bool:
        now_ns = perf_counter_ns()
        self._times.append(now_ns)
        self._ends.append(self._mark())
        self._at = 1
        self.expected = self._tokens[1]
        is_due = now_ns >= self._until_ns
        goes_on = self._steps_left > 0 and (not is_due or self._periods_left > 0)
        if is_due or not goes_on:
            self.on = goes_on
            times, self._times = self._times, [now_ns]
            ends, self._ends = self._ends, []
            self._until_ns, self._periods_left = now_ns + self._period_ns, self._periods_left - 1
            self._steps_left = min(self._steps_left, self._whole_steps(self._pattern, times, ends))
            self.on = goes_on = goes_on and self._steps_left > 0
        if goes_on:
            self._steps_left -= 1
            if self._ranges:
                self._ranges[0]()
        return goes_on


class Repeats:
    """The events of the current step so far, and whether they match the last one."""

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


# Which thread is which: one of autograd's, which works for the training thread, or one that waits for others.

_OURS = str(Path(__file__).parents[1])
_WAITS = frozenset(("join", "_wait_for_tstate_lock", "wait", "wait_for"))


def is_of_autograd(thread: int) -> bool:
    """Return whether Python did not start this thread: autograd's device threads run a backward's hooks."""
    known = threading._active.get(thread)  # type: ignore[attr-defined]
    return known is None or isinstance(known, threading._DummyThread)


def is_over(thread: int | None) -> bool:
    """Return whether a thread has ended."""
    return thread not in threading._active  # type: ignore[attr-defined]


def is_waiting(thread: int | None) -> bool:
    """Return whether a thread waits for others: its innermost call is one of Python's own waits, and not for us."""
    frame = sys._current_frames().get(thread or 0)
    if frame is None or frame.f_code.co_name not in _WAITS or frame.f_code.co_filename != threading.__file__:
        return False
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            return False
        frame = frame.f_back
    return True
