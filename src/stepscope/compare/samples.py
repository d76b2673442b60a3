"""What of a run can be compared: its steps in order, and per step its budget, idle causes, kernels and operators.

A step of the job is one sample, not one per rank: ranks that wait for each other take equally long. The step times
are medians over ranks, everything else means over ranks. Steps of the warm-up are left out.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.budget import CAUSE_NAMES, PARTS, Cause, RankBudget
from stepscope.analyze.host_time import host_calls, sum_by
from stepscope.analyze.phases import NO_STEP
from stepscope.analyze.steadiness import Series, log_series, median_over_ranks, recorded_series
from stepscope.document.light import step_ns
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.light import LightRun
from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog
from stepscope.stats.robust import MIN_SAMPLES, slow_start
from stepscope.trace.table import EventKind
from stepscope.units import NS_PER_MS

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class StepTimes(ArrayRecord):
    """Step times after the warm-up, in order."""

    dur_ns: Int64s
    warm_up_steps: int
    #: `step logs`, `recorded steps` or `device periods`
    source: str
    #: how long the training thread was ready and had no core, in `dur_ns` and in addition to it, and how long it ran;
    #: NaN in steps where that is unknown, None where it is in most
    wait_ns: Floats | None = None
    lost_ns: Floats | None = None
    cpu_ns: Floats | None = None
    #: one rank without a device: its waits for a core are all in the step
    one_thread: bool = False

    @property
    def ms(self) -> Floats:
        """Return the times in the unit of the report, in which differences are given."""
        return np.asarray(self.dur_ns / NS_PER_MS)

    @property
    def wall_ms(self) -> Floats:
        """Return the times by the clock on the wall."""
        return self.ms if self.lost_ns is None else self.ms + np.nan_to_num(self.lost_ns) / NS_PER_MS

    @property
    def waits_ms(self) -> Floats | None:
        """Return the waits for a core, in the steps or in addition to them."""
        known = [ns for ns in (self.wait_ns, self.lost_ns) if ns is not None]
        return np.sum(known, axis=0) / NS_PER_MS if known else None


@dataclass(frozen=True, eq=False, repr=False)
class PerStepTimes(ArrayRecord):
    """Times by name, mean over ranks: one row per step, one column per name."""

    names: tuple[str, ...]
    ms: Floats
    #: how often each ran; 1 where nothing is counted
    count: Floats


@dataclass(frozen=True, eq=False, repr=False)
class StepSamples(ArrayRecord):
    """The steps of one run for a comparison."""

    name: str
    #: steps that ran without the profiler, None where no step log has any
    logged: StepTimes | None
    #: the host's spans of the profiled steps
    recorded: StepTimes | None
    #: profiled steps, from the device's end of one to that of the next
    periods: StepTimes | None
    #: the step without the profiler, as the report gives it
    unprofiled_ns: int | None
    profiled_ns: int | None


@dataclass(frozen=True, eq=False, repr=False)
class RunSamples(StepSamples):
    """One run for a comparison."""

    #: the budget as the report gives it, by `PARTS`: sums to the unprofiled step where known
    part_ms: Floats | None
    #: the same with the profiler's cost in it: sums to the profiled step
    profiled_part_ms: Floats | None
    parts: PerStepTimes
    causes: PerStepTimes
    kernels: PerStepTimes
    #: time on the device where there is one, else on the host, without what other operators took
    operators: PerStepTimes


# The samples of one run, from its account or its step logs.

_KERNELS = (EventKind.KERNEL, EventKind.COMM_KERNEL)
# steps times names of a rank, in each of two tables
_MAX_CELLS = 1 << 24


def step_samples(account: Account) -> StepSamples:
    """Return the steps of an account."""
    step = account.step
    return StepSamples(
        name=account.run.name,
        logged=_logged(account.run.logs),
        recorded=_settled(recorded_series(account.run)),
        periods=_settled(_periods(*_with_steps(account))),
        unprofiled_ns=None if step is None or step.unprofiled_ns is None else round(step.unprofiled_ns),
        profiled_ns=None if step is None else round(step.profiled_ns),
    )


def run_samples(account: Account) -> RunSamples:
    """Return what of an account can be compared."""
    step = account.step
    ranks, known = _with_steps(account)
    numbers = _common_steps(ranks)
    on_device = any(rank.has_device for rank in ranks)
    return RunSamples(
        **vars(step_samples(account)),
        part_ms=None if step is None else np.array([p.ns_per_step for p in step.parts]) / NS_PER_MS,
        profiled_part_ms=None if step is None else np.array([p.profiled_ns for p in step.parts]) / NS_PER_MS,
        parts=_budget_columns(ranks, known, PARTS, lambda b: b.part_ns),
        causes=_budget_columns(ranks, known, [CAUSE_NAMES[c] for c in Cause], lambda b: b.cause_ns),
        kernels=_by_name(ranks, numbers, _kernel_calls),
        operators=_by_name(ranks, numbers, _device_calls if on_device else _host_calls),
    )


def light_samples(run: LightRun) -> RunSamples:
    """Return what of a run without traces can be compared: its steps."""
    none = PerStepTimes((), np.empty((0, 0)), np.empty((0, 0)))
    return RunSamples(
        name=run.name,
        logged=_logged(run.logs),
        recorded=None,
        periods=None,
        unprofiled_ns=step_ns(run.logs),
        profiled_ns=None,
        part_ms=None,
        profiled_part_ms=None,
        parts=none,
        causes=none,
        kernels=none,
        operators=none,
    )


def _with_steps(account: Account) -> tuple[list[Rank], list[RankBudget]]:
    pairs = [
        (view.rank, view.budget)
        for view in account.ranks
        if view.budget is not None and view.rank.steps.known and not (view.budget.periods.step == NO_STEP).any()
    ]
    return [rank for rank, _ in pairs], [budget for _, budget in pairs]


def _logged(logs: Sequence[StepLog]) -> StepTimes | None:
    series = log_series(logs)
    if series is None:
        return None
    first = slow_start(series.dur_ns)
    waited, lost, ran = (_by_step(logs, f"cpu.{name}_ns", series.step[first:]) for name in ("delay", "lost", "run"))
    one_thread = len(logs) == 1 and not (logs[0].device_ns > 0).any()
    return StepTimes(series.dur_ns[first:], first, series.source, waited, lost, ran, one_thread)


def _by_step(logs: Sequence[StepLog], column: str, steps: Int64s) -> Floats | None:
    """Return a column of the step logs for some steps, median over ranks."""
    values = [(log.step, log.column(column)) for log in logs]
    known = [(step[keep], ns[keep].astype(np.int64)) for step, ns in values for keep in (np.isfinite(ns),)]
    found, out = median_over_ranks(known, source=column), np.full(len(steps), np.nan)
    if found is not None:
        at = np.minimum(np.searchsorted(found.step, steps), len(found.step) - 1)
        out = np.where(found.step[at] == steps, found.dur_ns[at], np.nan)
    return out if np.isfinite(out).sum() >= max(MIN_SAMPLES, len(steps) / 2) else None


def _settled(series: Series | None) -> StepTimes | None:
    if series is None:
        return None
    first = slow_start(series.dur_ns)
    return StepTimes(series.dur_ns[first:], first, series.source)


def _periods(ranks: Sequence[Rank], budgets: Sequence[RankBudget]) -> Series | None:
    kept = []
    for rank, budget in zip(ranks, budgets, strict=True):
        complete = budget.periods.complete if budget.periods.complete.any() else np.ones(len(budget.periods), bool)
        kept.append((rank.steps.number[budget.periods.step][complete], budget.periods.dur_ns[complete]))
    return median_over_ranks(kept, source="device periods")


def _common_steps(ranks: Sequence[Rank]) -> Int64s:
    counts: dict[int, int] = {}
    for rank in ranks:
        for number in np.unique(rank.steps.number).tolist():
            counts[number] = counts.get(number, 0) + 1
    return np.array(sorted(n for n, c in counts.items() if c == len(ranks)), np.int64)


def _budget_columns(
    ranks: Sequence[Rank], budgets: Sequence[RankBudget], names: Sequence[str], of: Callable[[RankBudget], Int64s]
) -> PerStepTimes:
    sums: dict[int, tuple[Floats, int]] = {}
    for rank, budget in zip(ranks, budgets, strict=True):
        number = rank.steps.number[budget.periods.step]
        for i in np.flatnonzero(budget.periods.complete):
            before, count = sums.get(int(number[i]), (np.zeros(len(names)), 0))
            sums[int(number[i])] = before + of(budget)[i], count + 1
    rows = [total / count for _, (total, count) in sorted(sums.items())]
    table = np.array(rows).reshape(-1, len(names)) / NS_PER_MS
    return PerStepTimes(tuple(names), table, np.ones_like(table))


# index of the step, name, and duration of each call
_Calls = tuple[Int64s, npt.NDArray[np.int32], Floats]


def _kernel_calls(rank: Rank) -> _Calls:
    work = rank.work
    keep = np.isin(work.kind, _KERNELS)
    return work.step[keep].astype(np.int64), work.name[keep], (work.end_ns - work.start_ns)[keep].astype(float)


def _host_calls(rank: Rank) -> _Calls:
    calls = host_calls(rank)
    return rank.steps.of(calls.start_ns).astype(np.int64), calls.name, calls.self_ns().astype(float)


def _device_calls(rank: Rank) -> _Calls:
    calls, work = host_calls(rank), rank.work
    time = sum_by(calls.at_rows(work.op_row), (work.end_ns - work.start_ns).astype(float), len(calls))
    return rank.steps.of(calls.start_ns).astype(np.int64), calls.name, time


def _by_name(ranks: Sequence[Rank], numbers: Int64s, calls_of: Callable[[Rank], _Calls]) -> PerStepTimes:
    columns: dict[str, Floats] = {}
    for rank in ranks:
        for name, column in _columns(rank, numbers, calls_of(rank)):
            columns[name] = columns.get(name, 0.0) + column
    names = tuple(columns)
    table = np.array([columns[n] for n in names]).reshape(len(names), 2, len(numbers)) / max(len(ranks), 1)
    return PerStepTimes(names, table[:, 0].T / NS_PER_MS, table[:, 1].T)


def _columns(rank: Rank, numbers: Int64s, calls: _Calls) -> Iterator[tuple[str, Floats]]:
    step, name, time = calls
    number = np.where(step >= 0, rank.steps.number[step], -1) if len(rank.steps) else step
    at = np.searchsorted(numbers, number)
    keep = (step >= 0) & (at < len(numbers))
    keep[keep] = numbers[at[keep]] == number[keep]
    ids, code = np.unique(name[keep], return_inverse=True)
    most = max(_MAX_CELLS // max(len(numbers), 1), 1)
    if len(ids) > most:  # a name for nearly every call: those that take longest are compared
        longest = np.argsort(-np.bincount(code.reshape(-1), time[keep]), kind="stable")[:most]
        keep[keep] = np.isin(code.reshape(-1), longest)
        ids, code = np.unique(name[keep], return_inverse=True)
    cell = at[keep] * len(ids) + code
    shape = (len(numbers), len(ids))
    sums = np.bincount(cell, time[keep], minlength=shape[0] * shape[1]).reshape(shape)
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    for k, one in enumerate(ids.tolist()):
        yield rank.trace.strings[one], np.array([sums[:, k], counts[:, k]])
