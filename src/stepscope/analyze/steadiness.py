"""Is every step like the others: how much do step times vary, how long is the warm-up, do they drift, which stand out?

From the step logs where there are any (every step of the job), else from the recorded steps. The job's step is the
median over ranks, step by step: ranks that wait for each other take equally long, and one odd clock moves nothing.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.phases import NO_STEP, step_periods
from stepscope.contract.step_line import CHECKPOINT, COMPILATION, EVALUATION, GARBAGE_COLLECTION, LOADER_START
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.load import Run
from stepscope.run.side_files import StepLog, Telemetry
from stepscope.stats.robust import (
    distinct,
    mad_sigma,
    median,
    medians,
    quantiles,
    slow_start,
    spread,
    trend,
)
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_S, rank_ranges, readable_bytes

# a drift is one where chance alone gives as much in fewer than one series of a hundred
SIGNIFICANT = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class Series(ArrayRecord):
    """Step times in order."""

    #: `step logs` or `recorded steps`
    source: str
    step: Int64s
    dur_ns: Int64s
    by_rank_median_ns: tuple[int, ...]


def steadiness(
    run: Run,
    *,
    logs: Sequence[StepLog] = (),
    samples_per_step: float | None = None,
    tokens_per_step: float | None = None,
) -> Row | None:
    """Return how steady the steps of a run are, None where fewer than two are known.

    `samples_per_step` and `tokens_per_step` are those of the whole job.
    """
    series = log_series(logs) or recorded_series(run)
    if series is None or len(series.dur_ns) < 2:
        return None
    return steadiness_of(series, samples_per_step=samples_per_step, tokens_per_step=tokens_per_step)


def steadiness_of(
    series: Series, *, samples_per_step: float | None = None, tokens_per_step: float | None = None
) -> Row:
    """Return how steady one series of at least two step times is."""
    first = slow_start(series.dur_ns)
    settled = series.dur_ns[first:]
    usual = median(settled)
    mean, std = float(settled.mean()), float(settled.std())
    p10, p90, p99 = quantiles(settled, (0.1, 0.9, 0.99)).tolist()
    x = settled.astype(float)
    near = _running_median(x)
    above = x - near
    is_spike = above > np.maximum(5.0 * mad_sigma(above), 0.20 * near)
    extra = np.where(is_spike, above, 0.0)
    at = np.flatnonzero(extra)
    # Throughput by the mean: spikes are part of what the job takes.
    per_s = NS_PER_S / mean
    return Row(
        source=series.source,
        num_steps=len(series.dur_ns),
        warm_up_steps=first,
        warm_up_ns=round(float(series.dur_ns[:first].sum()) - first * usual),
        median_ns=round(usual),
        mean_ns=round(mean),
        std_ns=round(std),
        spread_pct=100 * std / mean,
        robust_spread_pct=100 * mad_sigma(settled) / usual,
        p10_ns=round(p10),
        p90_ns=round(p90),
        p99_ns=round(p99),
        min_ns=int(settled.min()),
        max_ns=int(settled.max()),
        over_ranks_ns=spread(series.by_rank_median_ns),
        steps_per_s=per_s,
        samples_per_s=None if samples_per_step is None else samples_per_step * per_s,
        tokens_per_s=None if tokens_per_step is None else tokens_per_step * per_s,
        drift=_drift(settled, usual),
        spikes=_largest(series.step[first:], settled, extra),
        num_spikes=len(at),
        spikes_ns_per_step=round(float(extra.sum()) / len(settled)),
        spike_every=_interval(series.step[first:][at]),
    )


def log_series(logs: Sequence[StepLog]) -> Series | None:
    """Return the undisturbed steps of the step logs, median over the ranks that have each; None without any."""
    kept = [(log.step[keep], log.dur_ns[keep]) for log in logs for keep in (log.unprofiled & (log.dur_ns > 0),)]
    return median_over_ranks(kept, source="step logs")


def recorded_series(run: Run) -> Series | None:
    """Return the steps of the profiled window as the device ran them (`step_periods`), where they are complete."""
    kept = []
    for rank in run.ranks:
        periods = step_periods(rank)
        if periods is not None:
            known = periods.complete & (periods.step >= 0)
            kept.append((rank.steps.number[periods.step[known]], periods.dur_ns[known]))
    return median_over_ranks(kept, source="recorded steps")


def median_over_ranks(kept: Sequence[tuple[Int64s, Int64s]], *, source: str) -> Series | None:
    """Return step by step the median over ranks, from each rank's step numbers and durations; None without any."""
    kept = [(step, dur) for step, dur in kept if len(step)]
    if not kept:
        return None
    number = np.concatenate([step for step, _ in kept])
    dur = np.concatenate([dur for _, dur in kept])
    order = np.lexsort((dur, number))
    number, dur = number[order], dur[order]
    step, first, count = np.unique(number, return_index=True, return_counts=True)
    middle = (dur[first + (count - 1) // 2] + dur[first + count // 2]) // 2
    return Series(source, step, middle, tuple(round(median(d)) for _, d in kept))


def _drift(settled: Int64s, usual: float) -> Row | None:
    found = trend(np.arange(len(settled)), settled)
    if found is None:
        return None
    to_pct = 100 * (len(settled) - 1) / usual
    change, low, high = (slope * to_pct for slope in (found.slope, found.low, found.high))
    return Row(
        change_pct=change,
        low_pct=low,
        high_pct=high,
        p_value=found.p_value,
        significant=found.p_value < SIGNIFICANT,
    )


def _running_median(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    half = min(25, len(x)) // 2
    padded = np.pad(x, half, mode="reflect") if half and len(x) > half else x
    if len(padded) == len(x):
        return np.full(len(x), median(x))
    return medians(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1))


def _largest(step: Int64s, settled: Int64s, extra: npt.NDArray[np.float64]) -> tuple[Row, ...]:
    at = np.flatnonzero(extra)
    at = np.sort(at[np.argsort(-extra[at], kind="stable")[:20]])
    return tuple(Row(step=int(step[i]), ns=int(settled[i]), extra_ns=round(extra[i])) for i in at)


def _interval(steps: Int64s) -> int | None:
    """Return the distance between spikes where at least three follow each other regularly.

    Regular is within 5 %, or one step where that is at most a tenth: short distances agree by chance.
    """
    gaps = np.diff(steps)
    if len(gaps) < 2:
        return None
    middle = median(gaps)
    regular = np.abs(gaps - middle) <= max(0.05 * middle, 1 if middle >= 10 else 0)
    return round(middle) if middle > 2 and regular.mean() >= 0.8 else None


# How long did every step of the run take on every rank, and which of them are special: profiled, with an evaluation
# or a checkpoint in them, or outliers?
#
# From the step logs; without them from the recorded steps, all of which are profiled.

# regions that make a step special; of several in one step the first counts
MARKED = (EVALUATION, CHECKPOINT, COMPILATION, LOADER_START, GARBAGE_COLLECTION)


def run_steps(run: Run, logs: Sequence[StepLog]) -> Row | None:
    """Return every step of a run by rank, None where fewer than two are known."""
    found = _from_logs(logs) if any(len(log) for log in logs) else _from_traces(run)
    return found if found is not None and len(found.step) > 1 else None


def _from_logs(logs: Sequence[StepLog]) -> Row:
    logs = [log for log in logs if len(log)]
    step = distinct(np.concatenate([log.step for log in logs]))
    dur = np.full((len(logs), len(step)), np.nan)
    profiled = np.zeros(len(step), bool)
    marks: dict[int, str] = {}
    for row, log in enumerate(logs):
        at = np.searchsorted(step, log.step)
        dur[row, at] = log.dur_ns
        profiled[at] |= log.profiled
        for name in MARKED:
            inside = np.nan_to_num(log.column(f"regions.{name}.ns"))
            for k in np.flatnonzero(inside > 0.05 * log.dur_ns).tolist():
                marks.setdefault(int(log.step[k]), name)
    ranks = tuple(log.rank for log in logs)
    return Row(source="step logs", step=step, ranks=ranks, dur_ns=dur, profiled=profiled, marks=marks)


def _from_traces(run: Run) -> Row | None:
    by_rank: list[dict[int, int]] = []
    for rank in run.ranks:
        periods = step_periods(rank) if rank.steps.known else None
        if periods is None or (periods.step == NO_STEP).any():
            by_rank.append({})
            continue
        numbers = rank.steps.number[periods.step].tolist()
        by_rank.append(dict(zip(numbers, periods.dur_ns.tolist(), strict=True)))
    step = np.array(sorted({n for mine in by_rank for n in mine}), np.int64)
    if not len(step):
        return None
    known = [(rank.rank, mine) for rank, mine in zip(run.ranks, by_rank, strict=True) if mine]
    dur = np.array([[mine.get(int(n), np.nan) for n in step] for _, mine in known], float)
    ranks, profiled = tuple(rank for rank, _ in known), np.ones(len(step), bool)
    return Row(source="recorded steps", step=step, ranks=ranks, dur_ns=dur, profiled=profiled, marks={})


# Was a rank's device held back: clocks, power, heat, other processes on it?
#
# From the recorder's samples during the steps. Reasons that are no loss (idle, clocks set by the user) do not count as
# throttling. Memory in use on the device beyond what this job's ranks have reserved there belongs to other processes.

_NO_LOSS = frozenset(("idle", "application_clocks_setting", "display_clock_setting", "sync_boost"))
# per rank on the device: contexts and libraries of a process take a gigabyte or more outside the allocator
_MIN_OTHERS_BYTES = 2 << 30


def device_states(telemetry: Sequence[Telemetry], logs: Sequence[StepLog]) -> tuple[Row, ...]:
    """Return the state of each rank's device, by rank."""
    telemetry = [each for each in telemetry if len(each) or each.device]  # else readings of the host alone
    own = {log.rank: _reserved_bytes(log) for log in logs}
    on_device: dict[Any, list[int]] = {}
    for each in telemetry:
        on_device.setdefault(_device_id(each), []).append(each.rank)
    return tuple(
        _state(t, {rank: own.get(rank) for rank in on_device[_device_id(t)]})
        for t in sorted(telemetry, key=lambda t: t.rank)
    )


def _device_id(t: Telemetry) -> Any:
    return t.device.get("uuid") or t.rank


def device_warnings(states: Sequence[Row]) -> list[str]:
    """Return a line for each device that is held back or shared with others."""
    lines = [f"rank {s.rank}: its device is {s.held_back}" for s in states if s.held_back]
    lines += [
        f"rank {s.rank}: other processes hold {readable_bytes(s.others_bytes)} of its device's memory: "
        "what they run there is in no trace"
        for s in states
        if s.others_bytes
    ]
    together = sorted({tuple(sorted((s.rank, *s.shared_with))) for s in states if s.shared_with})
    return lines + [
        f"ranks {rank_ranges(ranks)} share one device and slow each other down: their waits, transfers and idle time "
        "include the work of the others, and moving work between them saves less than on separate devices"
        for ranks in together
    ]


def slower_clock(state: Row, others: Sequence[Row]) -> str | None:
    """Return how much slower a device's clock is than the others', None where it is not."""
    clocks = [s.sm_clock_mhz for s in others if s.sm_clock_mhz is not None and s.rank != state.rank]
    usual = median(clocks) if clocks else None
    if usual is None or state.sm_clock_mhz is None or state.sm_clock_mhz >= 0.95 * usual:
        return None
    return f"{state.sm_clock_mhz:.0f} MHz, the others {usual:.0f}"


def _state(t: Telemetry, own_bytes: dict[int, int | None]) -> Row:
    in_use = np.array(["idle" not in (r or ()) for r in t.reasons], bool)
    busy = in_use if in_use.any() else ~in_use
    reasons = [r - _NO_LOSS for r, is_busy in zip(t.reasons, busy, strict=True) if is_busy and r is not None]
    counts = Counter(reason for each in reasons for reason in each)
    all_of_them = np.ones(len(t), bool)
    used, known = _values(t, "memory_used_bytes", all_of_them), [b for b in own_bytes.values() if b is not None]
    others = int(median(used)) - sum(known) if len(used) and len(known) == len(own_bytes) else None
    hottest = _values(t, "temperature_c", all_of_them)
    least = _MIN_OTHERS_BYTES * len(own_bytes)
    throttled_pct = 100 * sum(map(bool, reasons)) / len(reasons) if reasons else None
    state = Row(
        rank=t.rank,
        device=str(t.device["name"]) if t.device.get("name") else None,
        num_samples=len(t),
        sm_clock_mhz=_median(_values(t, "sm_clock_mhz", busy)),
        max_sm_clock_mhz=t.device.get("max_sm_clock_mhz"),
        power_w=_median(_values(t, "power_w", busy)),
        power_limit_w=t.device.get("power_limit_w"),
        temperature_c=float(hottest.max()) if len(hottest) else None,
        utilization_pct=_mean(_values(t, "utilization_pct", all_of_them)),
        throttled_pct=throttled_pct,
        throttle_reasons={reason: 100 * n / len(reasons) for reason, n in counts.most_common()},
        others_bytes=others if others is not None and others >= least else None,
        shared_with=tuple(sorted(rank for rank in own_bytes if rank != t.rank)),
    )
    return Row(state, held_back=_held_back(state))


def _held_back(state: Row) -> str | None:
    if state.throttled_pct is None or state.throttled_pct < 100 * 0.2:
        return None
    clocks = state.sm_clock_mhz, state.max_sm_clock_mhz
    clock = "" if None in clocks else f", {clocks[0]:.0f} of {clocks[1]:.0f} MHz"
    return f"throttled ({', '.join(state.throttle_reasons)}) in {state.throttled_pct:.0f} % of the samples{clock}"


def _reserved_bytes(log: StepLog) -> int | None:
    reserved = log.column("memory.reserved_bytes")
    return int(np.nanmax(reserved)) if len(reserved) and not np.isnan(reserved).all() else None


def _values(t: Telemetry, column: str, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    values = t.columns[column][chosen]
    return values[~np.isnan(values)]


def _median(values: npt.NDArray[np.float64]) -> float | None:
    return median(values) if len(values) else None


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(np.mean(values)) if len(values) else None
