"""The numbers that check lists ask for, each with how it was measured or why it could not be.

Shares are of the step in `account.step`: without the profiler's cost where the unprofiled step is known.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.host.time import data_loading as loading_spans
from stepscope.analyze.memory.usage import MemoryView
from stepscope.analyze.step.steadiness import log_series, steadiness_of
from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.intervals import covered_ns, union
from stepscope.run.aligned import UNMATCHED
from stepscope.stats.distinct import among
from stepscope.units import NS_PER_MS, readable_bytes

NO_STEP = "no step was recorded"
NO_DEVICE = "nothing ran on a device"
GRADIENT_KINDS = ("ddp", "zero1", "zero2", "fsdp-zero2", "fsdp-zero3")
_REDUCTIONS = (OP_CODE["all_reduce"], OP_CODE["reduce_scatter"])
_MIN_STEPS = 2


@dataclass(frozen=True)
class Measurement:
    """A number with how it was measured; None with why not."""

    value: float | None
    how: str


def ms_text(time_ns: float) -> str:
    """Return a time as reasons show it."""
    return f"{time_ns / NS_PER_MS:.2f} ms"


def on_device(account: Account) -> bool:
    """Return whether any rank's device was accounted for."""
    return any(view.on_device for view in account.ranks)


def part_share(account: Account, *parts: str) -> Measurement:
    """Return the percentage of the step that some parts of the budget take."""
    step = account.step
    if step is None:
        return Measurement(None, NO_STEP)
    time_ns = sum(step.ns(p) for p in parts)
    return Measurement(100 * time_ns / step.step_ns, f"{ms_text(time_ns)} of the {ms_text(step.step_ns)} step")


def phase_share(account: Account, part: str) -> Measurement:
    """Return the percentage of the step that a phase of training takes, and what takes most of the rest."""
    if account.serving is not None:
        return Measurement(None, "a serving engine's step has no phases of training")
    found, step = part_share(account, part), account.step
    if step is None:
        return found
    phases = ("data_loading", "forward", "backward", "optimizer")
    other = max((p for p in step.parts if p.part not in phases), key=lambda p: p.ns_per_step)
    rest = f"; of what is no phase of training, {other.part} takes most: {ms_text(other.ns_per_step)}"
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
        return Measurement(None, NO_STEP)
    if not on_device(account):
        return Measurement(None, NO_DEVICE)
    idle = sum(step.idle_ns.values())
    waits = step.ns("wait") + step.ns("pipeline_bubble")
    said = f"the device runs something for {ms_text(step.step_ns - idle)} of the {ms_text(step.step_ns)} step"
    if waits > 0.01 * step.step_ns:
        said += f", {ms_text(waits)} of it waiting for other ranks in collectives"
    return Measurement(100 * (1 - idle / step.step_ns), said)


def data_loading(account: Account) -> Measurement:
    """Return the percentage of the step spent waiting for input, unknown where no range shows a data loader."""
    found = part_share(account, "data_loading")
    if found.value == 0 and not any(len(loading_spans(r)) for r in account.run.ranks):
        return Measurement(
            None, "no range of a data loader is in the trace: mark it with stepscope.region('data_loading')"
        )
    return found


def gradient_sync_of_backward(account: Account) -> Measurement:
    """Return exposed gradient reductions against the backward pass they lengthen, in percent."""
    step = account.step
    if step is None:
        return Measurement(None, NO_STEP)
    times = [_reductions_ns(account, i) for i in range(len(account.ranks))]
    known = [t for t in times if t is not None]
    if not known:
        return Measurement(None, "no all-reduce or reduce-scatter of gradients was found")
    whole, exposed = (float(np.mean([t[k] for t in known])) for k in range(2))
    waits = [t[2] for t in known if t[2] is not None]
    waiting = ms_text(float(np.mean(waits))) if waits else "unknown how much"
    backward = step.ns("backward")
    said = f"gradients are reduced for {ms_text(whole)} per step ({waiting} of it waiting for a later rank), "
    said += f"{ms_text(exposed)} exposed, next to {ms_text(backward)} of backward"
    return Measurement(100 * exposed / (backward + exposed) if backward else None, said)


def _reductions_ns(account: Account, index: int) -> tuple[float, float, float | None] | None:
    """Return time per step in reductions of gradients, exposed and waiting; None on a rank without any.

    Waiting is None where no other rank matches any of them.
    """
    rank, window = account.ranks[index].rank, account.ranks[index].window
    c = rank.collectives
    rows = account.strategy.rows_of(index, *GRADIENT_KINDS)
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
