"""Steps that go like those before them: an event that was expected costs one reading of the clock.

Following the loop takes some hundred calls of Python per step, and after a step's work none of them is in the
processor's caches. Once a step had the same events in the same order as the one before it, those that follow are only
timed, and what happened is worked out for many of them at once:

    events of a step   load begins, load ends, forward begins, forward ends, backward begins, ... optimizer ends
    noted              0 3 | 5 20 | 20 60 | 61 70     0 3 | ...           times in one list, nothing else
    worked out         data_loading 3 - 0, forward_pass 20 - 5, ...; a step's end is the next one's first event

Twice a second what was noted is worked out and leaves; once a second a step is followed as ever, and has the look at
memory and collectives. Where the training thread waits for other ranks, whose wait is timed in such a step alone, both
are done four times a second. An event that was not expected (evaluation, a batch that did not come, a region of the
script's own) ends the routine at once: the events of the open step are then followed after all, with the times they
had.
"""

from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from stepscope.record.loop.pattern import BACKWARD, PART, Event, Pattern
from stepscope.record.loop.threads import is_of_autograd

PERIOD_NS = 500_000_000
PERIODS = 2  # until a step is followed
PERIOD_WITH_WAITS_NS = 250_000_000
# longer ones are all followed: what that takes is nothing to them
SHORT_STEP_NS = 100_000_000
_MAX_EVENTS = 4096  # of a step


class Routine:
    """Takes the expected events. All is done on the training thread.

    The loop's methods ask it first. Hooks that know their token ask it themselves where it is `expected`: each function
    of Python that is called on the way costs one to two microseconds in a step of a real job.

    `whole_steps(pattern, times, ends)` hears of steps that were only timed: `times` of all their events and of the
    last one's end, `ends` what `mark()` returned at the end of each; it returns how many more may be.
    `open_step(events, times)` hears of one in which the next event is not what was expected.
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
        self._mark: Callable[[], Any] = _nothing
        self._ranges: tuple[Callable[[], None], ...] = ()
        self._until_ns = self._period_ns = 0
        self._periods_left = 0
        self._steps_left = 0

    def begin(
        self, pattern: Pattern, *, steps: int, mark: Callable[[], Any], nvtx: Any = None, waits: bool = False
    ) -> None:
        """Begin with the first event of a step, which happens now, for so many steps at most.

        `waits`: this thread waits for other ranks, and a step is to be followed at the end of every period.
        """
        now_ns = perf_counter_ns()
        self._pattern, self._tokens = pattern, (*pattern.tokens, None)
        self._inside = (0, *[sum({PART.get(name, 0) for name in names}) for names in pattern.open_after])
        self._thread = get_ident()
        self._times, self._ends, self._at = [now_ns], [], 1
        self.expected = self._tokens[1]
        self._mark, self._steps_left = mark, steps - 1
        self._period_ns, self._periods_left = (PERIOD_WITH_WAITS_NS, 0) if waits else (PERIOD_NS, PERIODS - 1)
        self._until_ns = now_ns + self._period_ns
        self._ranges = pattern.ranges(nvtx) if nvtx is not None else ()
        self.on = True
        if self._ranges:
            self._ranges[0]()

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
        if self.expected != token:
            if self._inside[at] & hidden_inside:
                return False
            return self._step_ends(token) if self.expected is None else self._not_expected()
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
        if self._tokens[0] != token:
            return self._not_expected()
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

    def _not_expected(self) -> bool:
        self.end()
        return False


def _nothing() -> None:
    pass


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
