"""One rank as an object of the report's JSON. Times in milliseconds; unknown is null."""

from dataclasses import asdict
from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.ranks.collectives import RankWait
from stepscope.analyze.ranks.window import RankAccount
from stepscope.document.plain_values import ms_or_none, plain
from stepscope.run.rank import Rank
from stepscope.units import ms, us


def rank_json(account: Account, index: int) -> dict[str, Any]:
    """Return what is known of the rank at `index`: its steps, window, waits and clock."""
    view, clocks = account.ranks_read[index], account.shared.whole.clocks
    rank, steps = view.rank, view.rank.steps
    known = bool(clocks.known[index]) and len(account.ranks_read) > 1
    return {
        "rank": rank.rank,
        "rank_source": rank.rank_source,
        "host": rank.host,
        "num_events": rank.num_events,
        "num_steps": steps.known,
        "step_ms": [] if steps.is_window else [ms(d) for d in (steps.end_ns - steps.start_ns).tolist()],
        **_window(view.window),
        **_wait(view.wait),
        "clock_offset_us": us(int(clocks.offset_ns[index])) if known else None,
        "clock_uncertainty_us": us(float(clocks.uncertainty_ns[index])) if known else None,
        "clock_drift_ppm": plain(float(clocks.drift_ppm[index])),
        "joins": _joins(rank),
    }


def _joins(rank: Rank) -> dict[str, int]:
    return {
        **asdict(rank.joins),
        "collectives": len(rank.collectives),
        "collectives_without_record": rank.collectives.unjoined,
    }


def _window(window: RankAccount | None) -> dict[str, Any]:
    if window is None:
        names = ("window", "compute", "comm", "memory", "exposed_comm", "idle")
        return {**{f"{name}_ms": None for name in names}, "overlap_pct": None}
    if window.host_only:
        unknown = ("compute", "comm", "memory", "exposed_comm", "idle")
        return {"window_ms": ms(window.window_ns), **{f"{name}_ms": None for name in unknown}, "overlap_pct": None}
    return {
        "window_ms": ms(window.window_ns),
        "compute_ms": ms(window.compute.total_ns),
        "comm_ms": ms(window.comm.total_ns),
        "memory_ms": ms(window.memory.total_ns) if window.memory is not None else None,
        "exposed_comm_ms": ms(window.exposed_comm.total_ns),
        "idle_ms": ms(window.idle_ns),
        "overlap_pct": None if window.overlap_pct is None else round(window.overlap_pct, 3),
    }


def _wait(wait: RankWait | None) -> dict[str, Any]:
    return {
        "wait_ms": ms_or_none(wait.wait_ns if wait else None),
        "transfer_ms": ms_or_none(wait.transfer_ns if wait else None),
        "unmatched_comm_ms": ms_or_none(wait.unmatched_ns if wait else None),
        "waited_for_ms": ms_or_none(wait.waited_for_ns if wait else None),
    }
