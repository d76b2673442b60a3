"""Which micro-batches of a step need not be timed, and what the others say about them.

A step of many micro-batches is the same few events over and over. Once two steps in a row had them alike, most are
left alone: in six *stretches*, spread over the step, loads and forwards are not told of and a backward only counts
down.

    micro-batch   1 2 [3 ... 11] 12 [13 ... 21] 22 ... [53 ... 61] 62 63 64
                  timed  stretch  sample            stretch         timed

A stretch lasts from the end of one backward to the end of another, so its length is exact; what it is made of is taken
from the samples between the stretches. The last micro-batches are timed: where gradients are accumulated, their
reduction is in the very last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.contract.step_line import RegionTimes
from stepscope.record.steps.regions import OF_TRAINING

MAX_STRETCHES = 6
_FIRST = _LAST = 2  # micro-batches that are always timed
_MAX_PERIOD = 4  # backwards after which a step may repeat itself


@dataclass(frozen=True, slots=True)
class StretchPlan:
    """After how many backwards of the step a stretch begins, and how many backwards and micro-batches each has."""

    begins_after: frozenset[int]
    backwards: int
    units: int
    step_backwards: int
    """of the whole step: with another number of them it is another kind of step"""


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
    """Return where the longest part begins in which every unit equals the one a period before, and its length."""
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
        return scaled(
            sampled,
            ns=(sum(_length_ns(*s) for s in stretches), sum(_length_ns(*s) for s in samples)),
            units=(len(stretches) * self._units, len(samples)),
        )


def scaled(sampled: RegionTimes, *, ns: tuple[int, int], units: tuple[int, int]) -> RegionTimes:
    """Return the regions of stretches from those of samples; `ns` and `units` are of the stretches, of the samples."""
    if ns[1] <= 0 or units[1] <= 0:
        return {}
    return {
        name: {"ns": time["ns"] * ns[0] // ns[1], "n": time["n"] * units[0] // units[1]}
        for name, time in sampled.items()
        if time["n"]
    }


def _length_ns(begin: _Moment, end: _Moment) -> int:
    """Return the time between two moments without that of interruptions."""
    interrupted = [
        time["ns"] - begin.regions.get(name, {"ns": 0})["ns"]
        for name, time in end.regions.items()
        if name not in OF_TRAINING
    ]
    return max(0, end.at_ns - begin.at_ns - sum(interrupted))
