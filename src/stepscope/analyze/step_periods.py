"""When did the device begin and end each recorded step?

The host runs ahead of the device, so its spans say little about how long a step takes. A step's period is the time
from the device's end of the step before to its own:

    launched in step    0 0 0   1 1 1 1     2 2 2
    device           ---===== --=======-----=====-
    period              |  0  |    1   |    2    |

The first step's period begins where the work from before the window ends. Where the trace holds none, the device was
idle when the window began and how long nobody knows: that period begins with the host's span and is not complete.
Neither is one that follows a step which was not recorded or launched nothing: it holds more than its own step.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord, once_per_record
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.steps import DECODE, MIXED, PREFILL, SERVING, ServingStep, serving_step
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import median, recurring_long
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_S

NO_STEP = -1


@dataclass(frozen=True, eq=False, repr=False)
class StepPeriods(ArrayRecord):
    """The periods of one rank's steps, by time; on a device each begins where the one before ends."""

    #: index into the rank's steps; NO_STEP for the whole window of a trace without steps
    step: npt.NDArray[np.int64]
    start_ns: Int64s
    end_ns: Int64s
    #: False where the period is not that of one step alone (see above)
    complete: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def cuts(self) -> Int64s:
        return distinct(np.concatenate((self.start_ns, self.end_ns)))

    @property
    def dur_ns(self) -> Int64s:
        return self.end_ns - self.start_ns

    def of(self, kept: npt.NDArray[np.bool_]) -> "StepPeriods":
        return StepPeriods(self.step[kept], self.start_ns[kept], self.end_ns[kept], self.complete[kept])

    @property
    def typical(self) -> npt.NDArray[np.int64]:
        """Return the half of the periods whose length is nearest to the median, complete ones if there are any.

        What stands for the run: steps with a checkpoint, an evaluation or a hiccup in them are left out. Where long
        steps recur they are what the run is like, and all periods stand for it.
        """
        known = self._known
        if self.uneven:
            return known
        off = np.abs(self.dur_ns[known] - median(self.dur_ns[known]))
        return known[off <= np.sort(off)[(len(known) - 1) // 2]]

    @property
    def median_ns(self) -> float:
        return median(self.dur_ns[self._known])

    @property
    def mean_ns(self) -> float:
        return float(self.dur_ns[self._known].mean())

    @property
    def uneven(self) -> bool:
        """Return whether long steps recur, so that the median says little of the run."""
        return bool(recurring_long(self.dur_ns[self._known]).any())

    @property
    def _known(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self.complete) if self.complete.any() else np.arange(len(self))


@once_per_record
def step_periods(rank: Rank) -> StepPeriods | None:
    """Return the periods of a rank's steps, None for a trace that holds nothing to tell them by.

    A rank without a device has the host's spans. Without steps that launched work all of it is one period.
    """
    if rank.has_device:
        work = rank.work
        in_steps = rank.steps.known > 0 and bool((work.step >= 0).any())
        return _device_periods(rank) if in_steps else _one(work.start_ns.min(), work.end_ns.max())
    if rank.steps.known:
        start, end = rank.steps.start_ns, _host_ends(rank)
        return _periods(np.arange(len(start)), start, end, np.ones(len(start), bool))
    rows = np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    if not len(rows):
        return None
    start = rank.trace["ts_ns"][rows]
    return _one(start.min(), (start + rank.trace["dur_ns"][rows]).max())


def profiled_step_ns(periods: Sequence[StepPeriods | None]) -> float | None:
    """Return the step's time while profiled: the mean over ranks of each rank's median period."""
    known = [p.median_ns for p in periods if p is not None and len(p)]
    return float(np.mean(known)) if known else None


def _device_periods(rank: Rank) -> StepPeriods | None:
    work = rank.work
    ends = np.full(len(rank.steps), np.iinfo(np.int64).min)
    launched = work.step >= 0
    np.maximum.at(ends, work.step[launched], work.end_ns[launched])
    step = np.flatnonzero(ends > np.iinfo(np.int64).min)
    end = np.maximum.accumulate(ends[step])
    begin, known = _beginning(rank, int(end[0]))
    start = np.concatenate(([begin], end[:-1]))
    return _periods(step, start, end, np.concatenate(([known], np.diff(rank.steps.number[step]) == 1)))


def _beginning(rank: Rank, first_end_ns: int) -> tuple[int, bool]:
    work = rank.work
    first_start_ns = work.start_ns[work.step >= 0].min()
    before = (work.step < 0) & (work.start_ns < first_start_ns)
    if before.any():
        return min(int(work.end_ns[before].max()), first_end_ns), True
    if not rank.steps.by_profiler:  # the window is the span of the device's operations, and the trace may be cut to it
        return int(first_start_ns), False
    return min(int(rank.steps.start_ns[0]), int(first_start_ns)), False


def _one(start_ns: int, end_ns: int) -> StepPeriods | None:
    return _periods(np.array([NO_STEP]), np.array([start_ns]), np.array([end_ns]), np.array([True]))


def _periods(
    step: npt.NDArray[np.int64], start: Int64s, end: Int64s, complete: npt.NDArray[np.bool_]
) -> StepPeriods | None:
    keep = end > start
    return StepPeriods(step[keep], start[keep], end[keep], complete[keep]) if keep.any() else None


def _host_ends(rank: Rank) -> Int64s:
    steps = rank.steps
    follows = np.append(np.diff(steps.number) == 1, False)
    following = np.append(steps.start_ns[1:], max(steps.end_ns[-1], steps.start_ns[-1]))
    return np.where(follows, following, np.minimum(steps.end_ns, following))


# Steps of a serving engine.


@dataclass(frozen=True)
class ServedSteps:
    """All steps of one kind on the rank that was looked at. None: the ranges do not say."""

    #: prefill, decode or mixed
    kind: str
    steps: int
    #: median period
    step_ns: int
    requests_per_step: float | None
    tokens_per_step: float | None
    tokens_per_s: float | None


@dataclass(frozen=True)
class Serving:
    """What the engine served in the recorded steps."""

    rank: int
    kinds: tuple[ServedSteps, ...]
    #: prompt and generated tokens together
    tokens_per_s: float | None
    #: tokens of decode alone
    generated_per_s: float | None


def serving_of(run: Run) -> Serving | None:
    """Return what a serving engine did on the first rank with its ranges, None for any other job."""
    for rank in run.ranks:
        if rank.steps.told_by == SERVING:
            periods = step_periods(rank)
            return None if periods is None else _serving(rank, periods)
    return None


def _serving(rank: Rank, periods: StepPeriods) -> Serving | None:
    named = _named_steps(rank)
    in_steps = periods.step != NO_STEP
    starts = rank.steps.start_ns[periods.step[in_steps]].tolist()
    known = [(named.get(start), dur) for start, dur in zip(starts, periods.dur_ns[in_steps].tolist(), strict=True)]
    steps = [(step, dur) for step, dur in known if step is not None]
    if not steps:
        return None
    kinds = [_of_kind(kind, [s for s in steps if s[0].kind == kind]) for kind in (PREFILL, DECODE, MIXED)]
    total_ns = sum(dur for _, dur in steps)
    return Serving(
        rank=rank.rank,
        kinds=tuple(kind for kind in kinds if kind is not None),
        tokens_per_s=_rate([step.tokens for step, _ in steps], total_ns),
        generated_per_s=_rate([step.decode_tokens for step, _ in steps], total_ns),
    )


def _named_steps(rank: Rank) -> dict[int, ServingStep]:
    trace = rank.trace
    rows = rank.rows_named(lambda name: serving_step(name) is not None, EventKind.ANNOTATION)
    named = {}
    for row in rows.tolist():
        step = serving_step(trace.strings[trace["name"][row]])
        if step is not None:
            named[int(trace["ts_ns"][row])] = step
    return named


def _of_kind(kind: str, steps: list[tuple[ServingStep, int]]) -> ServedSteps | None:
    if not steps:
        return None
    requests = [_sum(step.prefill_requests, step.decode_requests) for step, _ in steps]
    tokens = [step.tokens for step, _ in steps]
    return ServedSteps(
        kind=kind,
        steps=len(steps),
        step_ns=round(median([dur for _, dur in steps])),
        requests_per_step=_mean(requests),
        tokens_per_step=_mean(tokens),
        tokens_per_s=_rate(tokens, sum(dur for _, dur in steps)),
    )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _mean(values: list[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _rate(tokens: list[int | None], time_ns: int) -> float | None:
    known = [t for t in tokens if t is not None]
    return sum(known) * NS_PER_S / time_ns if len(known) == len(tokens) and time_ns else None
