"""How does the job go right now? Pace, time by region, memory and lateness of each rank, over its newest steps.

step time   median over ranks of each rank's median, of the newest steps without the profiler
steps/s     steps that ended per second over the last ten seconds of the log, evaluation and pauses included
late        `contract/lateness.py` over the newest steps of all ranks
MFU         FLOPs per step / (peak of all devices x time per step), pauses included
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.log_stragglers import known_lateness
from stepscope.contract.lateness import DEFAULT_WINDOW_STEPS, LateRank
from stepscope.contract.live import (
    REGRESSION,
    Key,
    Stall,
    regression_state,
    straggler_states,
)
from stepscope.contract.step_line import counts
from stepscope.cost.chips import look_up, mfu_peak
from stepscope.records import Row
from stepscope.run.light import Line, Running
from stepscope.run.side_files import number, step_log_of
from stepscope.side_file import is_number
from stepscope.units import NS_PER_S, ms

_WINDOW_STEPS = DEFAULT_WINDOW_STEPS
_SHOWN_STEPS = 50
# steps at the start of a job that are no reference for later ones
_SETTLED_STEPS = 10


def picture_of(running: Running, *, flops_per_step: float | None = None, peak_tflops: float | None = None) -> Row:
    """Return the state of the job; the numbers override those in its files."""
    late = {one.rank: one for one in _lateness(running.ranks)}
    ranks = tuple(_rank_now(rank, late.get(rank.rank)) for rank in running.ranks)
    ended = [rank.step for rank in ranks if rank.step is not None]
    pace = _median([p for rank in running.ranks if (p := _pace(rank.lines)) is not None])
    mfu, reason = _mfu(running, pace, flops_per_step, peak_tflops)
    tokens = number(running.description.get("tokens_per_step"))
    step_ns = _median([rank.step_ns for rank in ranks if rank.step_ns is not None])
    first = [line["dur_ns"] for line in running.first[_SETTLED_STEPS:] if counts(line)]
    return Row(
        # no rank takes steps, by their own status
        stands_still=bool(ranks) and all(r.status is not None and r.status.stall is not None for r in ranks),
        ranks=ranks,
        step=min(ended) if len(ended) == len(ranks) and ended else None,
        step_ns=None if step_ns is None else round(step_ns),
        steps_per_s=pace,
        first_step_ns=round(statistics.median(first)) if len(first) >= _SETTLED_STEPS else None,
        tokens_per_s=tokens * pace if pace is not None and tokens is not None else None,
        mfu=mfu,
        mfu_reason=reason,
        at_ns=max((rank.lines[-1]["end_ns"] for rank in running.ranks if rank.lines), default=None),
    )


def _rank_now(rank: Row, late: LateRank | None) -> Row:
    newest = [line for line in rank.lines if counts(line)][-_SHOWN_STEPS:]
    return Row(
        rank=rank.rank,
        step=rank.lines[-1]["step"] if rank.lines else None,
        step_ns=round(statistics.median(line["dur_ns"] for line in newest)) if newest else None,
        regions_ns=_regions(newest),
        host_bytes=_newest(rank.lines, "host_bytes"),
        device_bytes=_newest(rank.lines, "allocated_bytes"),
        late=late,
        ended=rank.ended,
        status=rank.status,
        recent=tuple((int(line["step"]), int(line["dur_ns"])) for line in rank.lines[-_SHOWN_STEPS:]),
    )


def _regions(lines: Sequence[Line]) -> dict[str, int]:
    times: dict[str, list[float]] = {}
    for line in lines:
        regions = line.get("regions")
        for name, time in regions.items() if isinstance(regions, dict) else ():
            ns = number(time.get("ns")) if isinstance(time, dict) else None
            if ns is not None:
                times.setdefault(str(name), []).append(ns)
    return {name: round(statistics.fmean(found)) for name, found in times.items()}


def _newest(lines: Sequence[Line], name: str) -> int | None:
    for line in reversed(lines):
        memory = line.get("memory")
        if isinstance(memory, dict) and is_number(memory.get(name)):
            return int(memory[name])
    return None


def _pace(lines: Sequence[Line]) -> float | None:
    if not lines:
        return None
    end_ns = lines[-1]["end_ns"]
    recent = [line for line in lines if 0 <= end_ns - line["end_ns"] <= 10 * NS_PER_S]
    span_ns = end_ns - min(line["start_ns"] for line in recent)
    return len(recent) * NS_PER_S / span_ns if span_ns > 0 else None


def _lateness(ranks: Sequence[Row]) -> list[LateRank]:
    if len(ranks) < 2 or not all(rank.lines for rank in ranks):
        return []
    return known_lateness([step_log_of(rank.lines, rank=rank.rank) for rank in ranks], window_steps=_WINDOW_STEPS)


def _mfu(
    running: Running, pace: float | None, flops_per_step: float | None, peak_tflops: float | None
) -> tuple[float | None, str | None]:
    counted = [rank.flops for rank in running.ranks if rank.flops is not None]
    flops = flops_per_step or number(running.description.get("flops_per_step"))
    if not flops:
        flops = sum(counted) if len(counted) == len(running.ranks) else None
    if flops is None:
        return None, "FLOPs per step are not known yet: stepscope trigger counts them, or give --flops-per-step"
    peak = _peak_flops_per_s(running, peak_tflops)
    if peak is None:
        return None, "the peak of this device is not known; give --peak-tflops"
    if pace is None:
        return None, None
    mfu = flops * pace / (peak * len(running.ranks))
    return (mfu, None) if math.isfinite(mfu) else (None, "these FLOPs and this peak give no valid MFU")


def _peak_flops_per_s(running: Running, peak_tflops: float | None) -> float | None:
    if peak_tflops:
        return peak_tflops * 1e12
    device: Any = running.description.get("device") or running.facts.get("device")
    name = device.get("name") if isinstance(device, dict) else None
    chip = look_up(name).chip if isinstance(name, str) else None
    peak = mfu_peak(chip) if chip is not None else None
    return peak.flops_per_s if peak else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


# Stalled jobs: the rank that did not arrive, and where each rank is.
#
# The newest collective of each rank has a number in its group. A rank whose number is behind the others' did not get to
# the one that they wait in, and its Python stack shows what it does instead.

_NOT_THE_USERS = ("/site-packages/", "/dist-packages/", "/stepscope/", "/lib/python", "<frozen", "<string>")
_MAX_RANKS = 16


def explained(stalls: Mapping[int, Stall], num_ranks: int) -> list[str]:
    """Return the diagnosis of a job whose ranks take no steps, the cause first; empty where all progress."""
    if not stalls:
        return []
    longest = max(stalls.values(), key=lambda stall: stall.for_s)
    many = "no rank has" if len(stalls) == num_ranks else f"{len(stalls)} of {num_ranks} ranks have not"
    lines = [f"{many} taken a step for {longest.for_s:.1f} s; the longest one before took {longest.usual_s:.2f} s"]
    lines += _not_arrived(stalls)
    for rank, stall in sorted(stalls.items())[:_MAX_RANKS]:
        region = "" if stall.region is None else f"; in {stall.region}"
        collective = "" if stall.collective is None else f"; newest collective {stall.collective}"
        lines.append(f"rank {rank}: {place(stall)}{region}{collective}")
    if len(stalls) > _MAX_RANKS:
        lines.append(f"and {len(stalls) - _MAX_RANKS} more ranks")
    return lines


def place(stall: Stall) -> str:
    """Return the innermost line of the user's own code, else the innermost line at all."""
    own = next((frame for frame in stall.frames if not any(part in frame.file for part in _NOT_THE_USERS)), None)
    frame = own or (stall.frames[0] if stall.frames else None)
    if frame is None:
        return stall.silent or "no stack"
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} in {frame.function}"


def _not_arrived(stalls: Mapping[int, Stall]) -> list[str]:
    by_group: dict[str, dict[int, Stall]] = {}
    for rank, stall in stalls.items():
        if stall.group is not None and stall.sequence is not None:
            by_group.setdefault(stall.group, {})[rank] = stall
    lines = []
    for ranks in by_group.values():
        newest = max(stall.sequence or 0 for stall in ranks.values())
        behind = [rank for rank, stall in sorted(ranks.items()) if (stall.sequence or 0) < newest]
        waiting = next(stall for stall in ranks.values() if stall.sequence == newest)
        if behind:
            who = "rank " + str(behind[0]) if len(behind) == 1 else "ranks " + ", ".join(map(str, behind[:_MAX_RANKS]))
            name = (waiting.collective or "a collective").rpartition(",")[0] or str(waiting.collective)
            at = place(stalls[behind[0]])
            lines.append(f"{who} did not arrive at {name}, where the others wait; it is at {at}")
    return lines


# Alarm states: late ranks and slower steps.


def states_of(picture: Row) -> dict[Key, tuple[str, str]]:
    """Return for everything that has an alarm whether it is bad, good or between, and in words."""
    states = straggler_states(rank.late for rank in picture.ranks if rank.late is not None)
    if picture.step_ns is not None and picture.first_step_ns:
        ratio = picture.step_ns / picture.first_step_ns
        now, then = ms(picture.step_ns), ms(picture.first_step_ns)
        words = f"steps take {now:.1f} ms, {then:.1f} ms at the start ({ratio:.2f} x)"
        states[REGRESSION, None] = (regression_state(picture.step_ns, picture.first_step_ns), words)
    return states
