"""A running job at one moment as JSON, and what became of a window that somebody asked it for."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.live.picture import Picture, RankNow
from stepscope.analyze.ranks.log_stragglers import LateRank
from stepscope.contract.alarms import Key
from stepscope.contract.live import WindowPlan
from stepscope.contract.run_folder import SCHEMA
from stepscope.document.plain_values import ms_or_none, plain
from stepscope.units import NS_PER_S, ms


def live_json(
    run: str,
    picture: Picture,
    *,
    alarms: Mapping[Key, str],
    stalls: Sequence[str],
    news: Sequence[str],
    over: bool,
) -> dict[str, Any]:
    """Return one look at a job; `news` is what `watch` says since the last one."""
    return {
        "schema": SCHEMA,
        "run": run,
        "over": over,
        "at_s": None if picture.at_ns is None else picture.at_ns / NS_PER_S,
        "step": picture.step,
        "step_ms": ms_or_none(picture.step_ns),
        "first_step_ms": ms_or_none(picture.first_step_ns),
        "steps_per_s": picture.steps_per_s,
        "tokens_per_s": picture.tokens_per_s,
        "mfu": picture.mfu,
        "mfu_reason": picture.mfu_reason,
        "stands_still": picture.stands_still,
        "ranks": [_rank(rank) for rank in picture.ranks],
        "alarms": [{"kind": kind, "rank": rank, "text": text} for (kind, rank), text in alarms.items()],
        "stalls": list(stalls),
        "news": list(news),
    }


def window_json(
    run: str, plan: WindowPlan, outcomes: Mapping[int, Mapping[str, Any]], *, report: str
) -> dict[str, Any]:
    """Return which steps a window has and its trace on each rank; `outcomes` is empty where nobody waited for them."""
    return {
        "schema": SCHEMA,
        "run": run,
        "window": plan.window,
        "first_step": plan.first,
        "num_steps": plan.last - plan.first,
        "asked_by": plan.by,
        "report": report,
        "ranks": [{"rank": rank, **_trace(outcomes[rank])} for rank in sorted(outcomes)],
    }


def _rank(rank: RankNow) -> dict[str, Any]:
    status = rank.status
    return {
        "rank": rank.rank,
        "step": rank.step,
        "step_ms": ms_or_none(rank.step_ns),
        "regions_ms": {name: ms(ns) for name, ns in rank.regions_ns.items()},
        "host_bytes": rank.host_bytes,
        "device_bytes": rank.device_bytes,
        "late": None if rank.late is None else _late(rank.late),
        "ended": rank.ended,
        "stall": plain(status.stall) if status is not None else None,
        "metrics_url": status.metrics_url if status is not None else None,
        "trouble": status.trouble if status is not None else None,
    }


def _late(late: LateRank) -> dict[str, Any]:
    return {
        "is_late": late.is_late(),
        "late_ms": ms(late.late_ns),
        "low_ms": ms(late.low_ns),
        "high_ms": ms(late.high_ns),
        "slowdown": late.slowdown,
    }


def _trace(outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "status": outcome.get("status"),
        "trace": outcome.get("name"),
        "bytes": outcome.get("bytes"),
        "cut": outcome.get("cut"),
        "reason": outcome.get("reason"),
    }
