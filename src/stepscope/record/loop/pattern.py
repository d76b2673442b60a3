"""What a step consists of: its events in order, and which of their times make which region."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from stepscope.contract import step_line as regions
from stepscope.contract.step_line import BACKWARD as step_line_BACKWARD
from stepscope.contract.step_line import DATA_LOADING, GRADIENT_SYNC, RegionTimes
from stepscope.contract.step_line import FORWARD as step_line_FORWARD
from stepscope.record.steps import OF_TRAINING
from stepscope.record.window.guards import Interruption

# Which micro-batches of a step need not be timed, and what the others say about them.
#
# A step of many micro-batches is the same few events over and over. Once two steps in a row had them alike, most are
# left alone: in six *stretches*, spread over the step, loads and forwards are not told of and a backward only counts
# down.
#
#     micro-batch   1 2 [3 ... 11] 12 [13 ... 21] 22 ... [53 ... 61] 62 63 64
#                   timed  stretch  sample            stretch         timed
#
# A stretch lasts from the end of one backward to the end of another, so its length is exact; what it is made of is
# taken
# from the samples between the stretches. The last micro-batches are timed: where gradients are accumulated, their
# reduction is in the very last.

MAX_STRETCHES = 6
_FIRST = _LAST = 2  # micro-batches that are always timed
_MAX_PERIOD = 4  # backwards after which a step may repeat itself


@dataclass(frozen=True, slots=True)
class StretchPlan:
    """After how many backwards of the step a stretch begins, and how many backwards and micro-batches each has."""

    begins_after: frozenset[int]
    backwards: int
    units: int
    #: of the whole step: with another number of them it is another kind of step
    step_backwards: int


def plan_of(units: Sequence[Any]) -> StretchPlan | None:
    """Return the plan for a step whose backwards came in these units: equal ones compare equal, None is in no stretch.

    What repeats may be several units long: two losses, each with its backward.
    """
    plans = [plan for period in range(1, _MAX_PERIOD + 1) if (plan := _plan(units, period)) is not None]
    return max(plans, key=lambda plan: plan.backwards, default=None)


def _plan(units: Sequence[Any], period: int) -> StretchPlan | None:
    begin, count = _longest_repetition(units, period)
    length = (count // period - _FIRST - _LAST - (MAX_STRETCHES - 1)) // MAX_STRETCHES
    if length < 1:
        return None
    begins = [begin + period * (_FIRST + i * (length + 1)) for i in range(MAX_STRETCHES)]
    return StretchPlan(frozenset(begins), period * length, length, len(units))


def _longest_repetition(units: Sequence[Any], period: int) -> tuple[int, int]:
    best, begin = (0, 0), 0
    for at, unit in enumerate(units):
        if unit is None:
            begin = at + 1
            continue
        if at - begin >= period and units[at - period] != unit:
            begin = at - period + 1
        best = max(best, (at + 1 - begin, -begin))
    return -best[1], best[0]


@dataclass(slots=True)
class _Moment:
    at_ns: int
    regions: RegionTimes


class StretchTimes:
    """The stretches of a step that is followed, edge by edge, and what is to be added to its regions for them."""

    def __init__(self) -> None:
        self._edges: list[_Moment] = []  # begin, end, begin, end, ...
        self._units = 0

    def begins(self, at_ns: int, regions: RegionTimes, units: int) -> None:
        """A stretch of so many micro-batches begins, with these times of the step's regions so far."""
        self._edges.append(_Moment(at_ns, regions))
        self._units = units

    def ends(self, at_ns: int, regions: RegionTimes) -> int:
        """It ends; only what interrupts the thread can have added to the regions. Return the number of stretches."""
        self._edges.append(_Moment(at_ns, regions))
        return len(self._edges) // 2

    def taken(self) -> RegionTimes:
        """Return what the stretches of this step add to its regions; they are no longer here."""
        edges, self._edges = self._edges, []
        if not edges:
            return {}
        stretches = list(zip(edges[::2], edges[1::2], strict=False))
        samples = list(zip(edges[1::2], edges[2::2], strict=False))
        sampled: RegionTimes = {}
        for begin, end in samples:
            for name, time in end.regions.items():
                if name in OF_TRAINING:
                    before = begin.regions.get(name, {"ns": 0, "n": 0})
                    total = sampled.setdefault(name, {"ns": 0, "n": 0})
                    for key in total:
                        total[key] += time[key] - before[key]
        return _scaled(
            sampled,
            ns=(sum(_length_ns(*s) for s in stretches), sum(_length_ns(*s) for s in samples)),
            units=(len(stretches) * self._units, len(samples)),
        )


def _scaled(sampled: RegionTimes, *, ns: tuple[int, int], units: tuple[int, int]) -> RegionTimes:
    if ns[1] <= 0 or units[1] <= 0:
        return {}
    return {
        name: {"ns": time["ns"] * ns[0] // ns[1], "n": time["n"] * units[0] // units[1]}
        for name, time in sampled.items()
        if time["n"]
    }


def _length_ns(begin: _Moment, end: _Moment) -> int:
    interrupted = [
        time["ns"] - begin.regions.get(name, {"ns": 0})["ns"]
        for name, time in end.regions.items()
        if name not in OF_TRAINING
    ]
    return max(0, end.at_ns - begin.at_ns - sum(interrupted))


# What the events of a training loop are recognised by: whole numbers, compared once per event.
#
# Optimizers have their own, larger ones: where they lie in memory.

DATA_BEGINS, DATA_ENDS, NO_BATCH, BACKWARD_BEGINS, BACKWARD_ENDS, SYNC_BEGINS, SCHEDULE_BEGINS = range(1, 8)
FORWARD_ENDS, FORWARD_BEGINS = 8, 9  # up to 12: with gradients or without, of a trained model or another one
LOADER_BEGINS, LOADER_ENDS, ROW_BEGINS, QUIET_ROW_BEGINS, ROW_ENDS, STEPS_ROW_ENDS = range(13, 19)
STRETCH_ENDS, STRETCH_BEGINS = 19, 1000  # and its number of micro-batches added
STEPS_ROW = 1  # added to an optimizer's token where it begins a row


# The parts of a training step that hooks tell of, each a bit, and the region that each becomes.

DATA, FORWARD, BACKWARD, OPTIMIZER, LOADER, SAVING = 1, 2, 4, 8, 16, 32
QUIET = 64  # a row of forwards without gradients
STRETCH = 128  # micro-batches that are not timed
WORK = DATA | FORWARD | BACKWARD
REGION = {
    DATA: regions.DATA_LOADING,
    FORWARD: regions.FORWARD,
    BACKWARD: regions.BACKWARD,
    OPTIMIZER: regions.OPTIMIZER,
    LOADER: regions.LOADER_START,
    SAVING: regions.CHECKPOINT,
}
PART = {name: part for part, name in REGION.items()}
# inside which parts another one does not count
HIDDEN_INSIDE = {
    DATA: WORK,
    FORWARD: WORK,
    BACKWARD: WORK,
    OPTIMIZER: OPTIMIZER,
    LOADER: WORK | LOADER,
    SAVING: SAVING,
}


# ("begin" or "end", name of the region)
Edge = tuple[str, str]
Spans = list[tuple[int, int]]
_OF_MICRO_BATCHES = frozenset((DATA_LOADING, step_line_FORWARD, step_line_BACKWARD, GRADIENT_SYNC))
_NO_INTERRUPTION: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """Something the training loop did: `token` is what it is recognised by, `edge` the region's edge that it is.

    `follow(at_ns)` follows it, as having happened then; it holds no tensor alive.
    """

    token: int
    edge: Edge | None
    follow: Callable[[int], Any]
    #: micro-batches between this event and the next, none of them timed (see `stretch`)
    stretch_units: int = 0


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
            if (
                edge is not None
                and unit[-2:] == [("begin", step_line_FORWARD), ("end", step_line_FORWARD)]
                and edge == unit[-2]
            ):
                del unit[-2:]  # several forwards, in a row or each by itself, are as one
            if edge is not None:
                unit.append(edge)
            if edge == ("end", step_line_BACKWARD):
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
        return _scaled(sampled, ns=(skipped_ns, sampled_ns), units=(units, len(self._samples)))


def _sum_ns(times: Sequence[int], first: int, spans: Spans, lost: Mapping[int, int]) -> int:
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
