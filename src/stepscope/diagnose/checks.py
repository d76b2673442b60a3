"""The check lists of the field as live checks: every item measured and marked pass, fail or not measured.

    id                          good      bad        of
    device_utilisation_pct      > 80      < 50       the step
    data_loading_pct            < 10      > 30       the step
    all_reduce_pct_of_backward  < 15      > 30       backward and the reductions that lengthen it
    host_device_copies_pct      < 5       > 15       the step
    data_share_pct              <= 10                the step; 5-10 is usual
    forward_share_pct           30 - 40              the step
    backward_share_pct          40 - 50              the step
    optimizer_share_pct         <= 10                the step; 5-10 is usual
    step_time_spread_pct        <= 10     > 10       the mean step
    memory_pct_of_limit         < 95      >= 95      the device's memory

A check passes only where the number is good. Between good and bad it fails, and the reason says that it is neither.
A number that is not known is `None` and the check `not measured`.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.budget import Floats
from stepscope.analyze.host_time import data_loading as loading_spans
from stepscope.analyze.layers import PART_CODE
from stepscope.analyze.memory import MemoryView
from stepscope.analyze.steadiness import log_series, steadiness_of
from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.intervals import covered_ns, union
from stepscope.run.aligned import UNMATCHED
from stepscope.stats.distinct import among
from stepscope.units import NS_PER_MS, readable_bytes

# The numbers that check lists ask for, each with how it was measured or why it could not be.
#
# Shares are of the step in `account.step`: without the profiler's cost where the unprofiled step is known.

_NO_STEP = "no step was recorded"
NO_DEVICE = "nothing ran on a device"
_REDUCTIONS = (OP_CODE["all_reduce"], OP_CODE["reduce_scatter"])
_MIN_STEPS = 2


@dataclass(frozen=True)
class Measurement:
    """A number with how it was measured; None with why not."""

    value: float | None
    how: str


def _ms_text(time_ns: float) -> str:
    return f"{time_ns / NS_PER_MS:.2f} ms"


def on_device(account: Account) -> bool:
    """Return whether any rank's device was accounted for."""
    return any(view.on_device for view in account.ranks)


def part_share(account: Account, *parts: str) -> Measurement:
    """Return the percentage of the step that some parts of the budget take."""
    step = account.step
    if step is None:
        return Measurement(None, _NO_STEP)
    time_ns = sum(step.ns(p) for p in parts)
    return Measurement(100 * time_ns / step.step_ns, f"{_ms_text(time_ns)} of the {_ms_text(step.step_ns)} step")


def _phase_share(account: Account, part: str) -> Measurement:
    if account.serving is not None:
        return Measurement(None, "a serving engine's step has no phases of training")
    found, step = part_share(account, part), account.step
    if step is None:
        return found
    phases = ("data_loading", "forward", "backward", "optimizer")
    other = max((p for p in step.parts if p.part not in phases), key=lambda p: p.ns_per_step)
    rest = f"; of what is no phase of training, {other.part} takes most: {_ms_text(other.ns_per_step)}"
    return Measurement(found.value, found.how + (rest if other.ns_per_step > 0 else ""))


def device_share(account: Account, *parts: str) -> Measurement:
    """Return the same for parts that only a device has."""
    return part_share(account, *parts) if on_device(account) else Measurement(None, NO_DEVICE)


def device_utilisation(account: Account) -> Measurement:
    """Return the percentage of the step in which the device runs anything, as monitoring tools count it.

    A collective that waits for another rank keeps its device busy: how much of that there is, is said with it.
    """
    step = account.step
    if step is None:
        return Measurement(None, _NO_STEP)
    if not on_device(account):
        return Measurement(None, NO_DEVICE)
    idle = sum(step.idle_ns.values())
    waits = step.ns("wait") + step.ns("pipeline_bubble")
    said = f"the device runs something for {_ms_text(step.step_ns - idle)} of the {_ms_text(step.step_ns)} step"
    if waits > 0.01 * step.step_ns:
        said += f", {_ms_text(waits)} of it waiting for other ranks in collectives"
    return Measurement(100 * (1 - idle / step.step_ns), said)


def data_loading(account: Account) -> Measurement:
    """Return the percentage of the step spent waiting for input, unknown where no range shows a data loader."""
    found = part_share(account, "data_loading")
    if found.value == 0 and not any(len(loading_spans(r)) for r in account.run.ranks):
        return Measurement(
            None, "no range of a data loader is in the trace: mark it with stepscope.region('data_loading')"
        )
    return found


def _gradient_sync_of_backward(account: Account) -> Measurement:
    step = account.step
    if step is None:
        return Measurement(None, _NO_STEP)
    times = [_reductions_ns(account, i) for i in range(len(account.ranks))]
    known = [t for t in times if t is not None]
    if not known:
        return Measurement(None, "no all-reduce or reduce-scatter of gradients was found")
    whole, exposed = (float(np.mean([t[k] for t in known])) for k in range(2))
    waits = [t[2] for t in known if t[2] is not None]
    waiting = _ms_text(float(np.mean(waits))) if waits else "unknown how much"
    backward = step.ns("backward")
    said = f"gradients are reduced for {_ms_text(whole)} per step ({waiting} of it waiting for a later rank), "
    said += f"{_ms_text(exposed)} exposed, next to {_ms_text(backward)} of backward"
    return Measurement(100 * exposed / (backward + exposed) if backward else None, said)


def _reductions_ns(account: Account, index: int) -> tuple[float, float, float | None] | None:
    """Return time per step in reductions of gradients, exposed and waiting; None on a rank without any.

    Waiting is None where no other rank matches any of them.
    """
    rank, window = account.ranks[index].rank, account.ranks[index].window
    c = rank.collectives
    rows = account.strategy.rows_of(index, "ddp", "zero1", "zero2", "fsdp-zero2", "fsdp-zero3")
    rows = rows[among(c.op[rows], _REDUCTIONS) & (c.step[rows] >= 0)]
    if window is None or not len(rows) or not len(rank.steps):
        return None
    spans, wait = union(c.start_ns[rows], c.end_ns[rows]), np.maximum(account.shared.wait_ns[index][rows], 0)
    waits = union(c.start_ns[rows], c.start_ns[rows] + wait)
    exposed = int(covered_ns(window.exposed_comm, spans.start, spans.end).sum())
    all_ns, exposed_ns, wait_ns = (x / len(rank.steps) for x in (spans.total_ns, exposed, waits.total_ns))
    matched = (account.shared.wait_ns[index][rows] != UNMATCHED).any()
    return all_ns, exposed_ns, wait_ns if matched else None


def step_time_spread(account: Account) -> Measurement:
    """Return the standard deviation of step times against their mean, in percent.

    From the step logs where there are any, else from the periods of the recorded steps, mean over ranks: the spans
    of a host that runs ahead of its device say nothing about how steady the steps are.
    """
    series = log_series(account.run.logs)
    if series is not None and len(series.dur_ns) >= _MIN_STEPS:
        found = steadiness_of(series)
        return Measurement(found.spread_pct, f"{found.num_steps - found.warm_up_steps} steps of the step logs")
    periods = [v.budget.periods.dur_ns[v.budget.periods.complete] for v in account.ranks if v.budget is not None]
    enough = [p for p in periods if len(p) >= _MIN_STEPS]
    if not enough:
        return Measurement(None, f"fewer than {_MIN_STEPS} whole steps were recorded on a rank")
    spread = float(np.mean([p.std() / p.mean() for p in enough]))
    return Measurement(100 * spread, f"{min(map(len, enough))} recorded steps per rank")


def memory_of_limit(memory: MemoryView | None) -> Measurement:
    """Return the fullest rank's peak against its device's memory, in percent."""
    if memory is None:
        return Measurement(None, "no memory was recorded: record with --memory")
    known = [r for r in memory.ranks if r.peak_pct_of_total is not None]
    if not known:
        return Measurement(None, "the trace does not say how much memory the device has")
    fullest = max(known, key=lambda r: r.peak_pct_of_total or 0.0)
    peak = fullest.peak_reserved_bytes or fullest.peak_allocated_bytes or 0
    total = readable_bytes(fullest.device_total_bytes or 0)
    return Measurement(fullest.peak_pct_of_total, f"peak of {readable_bytes(peak)} of {total} on rank {fullest.rank}")


# Is the run healthy, rank by rank? Each rank's step by what it is spent on, and who is late.

# parts of the budget by what the table calls them; together they are the step
COLUMNS = {
    "compute": ("forward", "backward", "optimizer", "other_compute"),
    "transfer": ("exposed_transfer",),
    "wait": ("wait", "pipeline_bubble"),
    "data": ("data_loading",),
    "copies": ("copy",),
    "host": ("launch_gap", "host_sync", "allocator", "host_stall"),
    "unknown": ("unknown",),
}


@dataclass(frozen=True)
class RankHealth:
    """One rank's step."""

    rank: int
    host: str | None
    #: median period while profiled
    step_ns: float
    #: of the rank's step without the profiler's cost, by COLUMNS
    pct: dict[str, float]
    #: own time beyond the others' median, where it is a straggler
    late_ns: float | None
    cause: str | None


def rank_health(account: Account) -> list[RankHealth]:
    """Return every rank that has a budget; none where no step was recorded."""
    if account.step is None:
        return []
    late = {s.rank: s for s in account.stragglers}
    known = [(view.rank, view.budget) for view in account.ranks if view.budget is not None]
    rows = []
    for (rank, budget), parts in zip(known, account.step.rank_part_ns, strict=True):
        found = late.get(rank.rank)
        rows.append(
            RankHealth(
                rank=rank.rank,
                host=rank.host,
                step_ns=budget.periods.median_ns,
                pct={column: _pct(parts, names) for column, names in COLUMNS.items()},
                late_ns=found.late_ns_per_step if found else None,
                cause=found.cause if found else None,
            )
        )
    return rows


def _pct(parts: Floats, names: tuple[str, ...]) -> float:
    whole = float(parts.sum())
    return 100 * float(parts[[PART_CODE[name] for name in names]].sum()) / whole if whole else 0.0


PASS, FAIL, NOT_MEASURED = "pass", "fail", "not measured"


@dataclass(frozen=True)
class Check:
    """One item of a check list. The fields are those of the report's JSON."""

    id: str
    value: float | None
    good: str
    #: None where the field gives no limit beyond which a number is bad
    bad: str | None
    #: `pass`, `fail` or `not measured`
    status: str
    reason: str


@dataclass(frozen=True)
class Range:
    """Numbers that count as good, or as bad. None is no limit; the limits themselves are in unless `open`."""

    low: float | None = None
    high: float | None = None
    open: bool = True

    def __contains__(self, value: float) -> bool:
        inside = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return inside and not (self.open and value in (self.low, self.high))

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.low:g} - {self.high:g}"
        sign, limit = (">", self.low) if self.high is None else ("<", self.high)
        return f"{sign}{'' if self.open else '='} {limit:g}"


def checks_of(account: Account) -> list[Check]:
    """Return every check of the table above."""
    return [
        checked("device_utilisation_pct", device_utilisation(account), good=Range(low=80), bad=Range(high=50)),
        checked("data_loading_pct", data_loading(account), good=Range(high=10), bad=Range(low=30)),
        checked(
            "all_reduce_pct_of_backward", _gradient_sync_of_backward(account), good=Range(high=15), bad=Range(low=30)
        ),
        checked("host_device_copies_pct", device_share(account, "copy"), good=Range(high=5), bad=Range(low=15)),
        *_shares(account),
        checked(
            "step_time_spread_pct",
            step_time_spread(account),
            good=Range(high=10, open=False),
            bad=Range(low=10),
        ),
        checked(
            "memory_pct_of_limit",
            memory_of_limit(account.memory),
            good=Range(high=95),
            bad=Range(low=95, open=False),
        ),
    ]


def checked(name: str, found: Measurement, *, good: Range, bad: Range | None = None) -> Check:
    """Return a number held against what is good and what is bad."""
    if found.value is None:
        return Check(name, None, str(good), str(bad) if bad else None, NOT_MEASURED, found.how)
    value = round(found.value, 4)
    if value in good:
        status, reason = PASS, found.how
    else:
        between = bad is not None and value not in bad
        status, reason = FAIL, f"neither good nor bad: {found.how}" if between else found.how
    return Check(name, value, str(good), str(bad) if bad else None, status, reason)


def _shares(account: Account) -> list[Check]:
    little = Range(high=10, open=False)
    return [
        checked("data_share_pct", data_loading(account), good=little),
        checked("forward_share_pct", _phase_share(account, "forward"), good=Range(30, 40, open=False)),
        checked("backward_share_pct", _phase_share(account, "backward"), good=Range(40, 50, open=False)),
        checked("optimizer_share_pct", _phase_share(account, "optimizer"), good=little),
    ]
