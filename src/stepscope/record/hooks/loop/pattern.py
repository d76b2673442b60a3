"""What a step consists of: its events in order, and which of their times make which region."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from stepscope.contract.step_line import BACKWARD, DATA_LOADING, FORWARD, GRADIENT_SYNC, RegionTimes
from stepscope.record.hooks.loop.stretch import StretchPlan, plan_of, scaled
from stepscope.record.window.interruptions import Interruption

Edge = tuple[str, str]
"""("begin" or "end", name of the region)"""
Spans = list[tuple[int, int]]
_OF_MICRO_BATCHES = frozenset((DATA_LOADING, FORWARD, BACKWARD, GRADIENT_SYNC))
_NO_INTERRUPTION: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """Something the training loop did: `token` is what it is recognised by, `edge` the region's edge that it is.

    `follow(at_ns)` follows it, as having happened then; it holds no tensor alive.
    """

    token: int
    edge: Edge | None
    follow: Callable[[int], Any]
    stretch_units: int = 0
    """micro-batches between this event and the next, none of them timed (see `stretch`)"""


class Pattern:
    """The events of one step, and which times make which region: `{name: (number, [(begin, end), ...])}`."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = tuple(events)
        self.tokens = tuple(event.token for event in events)
        self._edges = [event.edge for event in events]
        self.regions = _own_time(self._edges)
        self.open_after = _open_after(self._edges)  # the regions open after each event, outermost first
        self.stretches = [(at, at + 1) for at, event in enumerate(events) if event.stretch_units]
        self._samples = [(a[1], b[0]) for a, b in pairwise(self.stretches)]
        self._sampled = {name: self._in_samples(name) for name in self.regions} if self._samples else {}
        self._once = [(name, *spans[0]) for name, (number, spans) in self.regions.items() if number == len(spans) == 1]
        self._all_once = len(self._once) == len(self.regions) and not self._samples

    @cached_property
    def plan(self) -> StretchPlan | None:
        """Which micro-batches of such a step need not be timed; None where it has few, or the plan is at work."""
        if self.stretches:
            return None
        units: list[tuple[Edge, ...] | None] = []
        unit: list[Edge] = []
        plain = True
        for event, open_regions in zip(self.events, self.open_after, strict=True):
            edge = event.edge
            plain = plain and edge is not None and edge[1] in _OF_MICRO_BATCHES
            if edge is not None and unit[-2:] == [("begin", FORWARD), ("end", FORWARD)] and edge == unit[-2]:
                del unit[-2:]  # several forwards, in a row or each by itself, are as one
            if edge is not None:
                unit.append(edge)
            if edge == ("end", BACKWARD):
                units.append(tuple(unit) if plain and not open_regions else None)
                unit, plain = [], True
        return plan_of(units)

    def ranges(self, nvtx: Any) -> tuple[Callable[[], None], ...]:
        """Return what each event does to NVTX's stack of ranges."""
        acts: list[Callable[[], None]] = []
        open_regions: list[str] = []
        for edge in self._edges:
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

    def region_times(
        self, times: Sequence[int], first: int, interrupted_ns: Mapping[int, int] = _NO_INTERRUPTION
    ) -> RegionTimes:
        """Return the regions of the step whose events begin at `times[first]`.

        `interrupted_ns` says how long the thread was interrupted after an event, which is no time of a region.
        """
        if self._all_once and not interrupted_ns:  # as most steps are: the same as below, in a third of the time
            return {name: {"ns": times[first + end] - times[first + begin], "n": 1} for name, begin, end in self._once}
        found = {
            name: {"ns": _sum_ns(times, first, spans, interrupted_ns), "n": number}
            for name, (number, spans) in self.regions.items()
        }
        if self._samples:
            for name, added in self._of_stretches(times, first, interrupted_ns).items():
                found[name] = {key: found[name][key] + added[key] for key in added}
        return found

    def steps(self, times: Sequence[int], interruptions: Sequence[Interruption]) -> list[RegionTimes]:
        """Return the regions of the steps that `times` are of; what interrupted one is a region of its own in it."""
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

    def _in_samples(self, name: str) -> tuple[int, Spans]:
        """Return how often a region begins in the samples between stretches, and its spans there."""

        def sampled(begin: int, end: int) -> bool:
            return any(first <= begin and end <= last for first, last in self._samples)

        number = sum(sampled(at, at + 1) for at, edge in enumerate(self._edges) if edge == ("begin", name))
        return number, [span for span in self.regions[name][1] if sampled(*span)]

    def _of_stretches(self, times: Sequence[int], first: int, lost: Mapping[int, int]) -> RegionTimes:
        sampled = {
            name: {"ns": _sum_ns(times, first, spans, lost), "n": number}
            for name, (number, spans) in self._sampled.items()
        }
        skipped_ns, sampled_ns = (_sum_ns(times, first, spans, lost) for spans in (self.stretches, self._samples))
        units = sum(event.stretch_units for event in self.events)
        return scaled(sampled, ns=(skipped_ns, sampled_ns), units=(units, len(self._samples)))


def _sum_ns(times: Sequence[int], first: int, spans: Spans, lost: Mapping[int, int]) -> int:
    """Return the time in all spans of the step, without interruptions."""
    total = sum([times[first + end] - times[first + begin] for begin, end in spans])
    if lost:
        total -= sum([lost.get(first + at, 0) for begin, end in spans for at in range(begin, end)])
    return max(0, total)


def _nothing() -> None:
    pass


def _several(act: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        act()


def _last_index(names: list[str], name: str) -> int:
    return len(names) - 1 - names[::-1].index(name)


def _open_after(edges: Sequence[Edge | None]) -> tuple[tuple[str, ...], ...]:
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


def _own_time(edges: Sequence[Edge | None]) -> dict[str, tuple[int, Spans]]:
    """Return per region how often it begins and the spans between events in which it is the innermost one."""
    found: dict[str, tuple[int, Spans]] = {}
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
