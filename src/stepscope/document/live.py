"""A snapshot of a running job as JSON, and the outcome of a requested window."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.analyze.account import Account
from stepscope.contract.lateness import LateRank
from stepscope.contract.live import Key, WindowPlan
from stepscope.contract.run_folder import SCHEMA as run_folder_SCHEMA
from stepscope.document.report import memory_of_steps
from stepscope.document.rows import in_ms, ms_or_none, plain
from stepscope.records import Row
from stepscope.units import NS_PER_S, ms


def live_json(
    run: str,
    picture: Row,
    *,
    alarms: Mapping[Key, str],
    stalls: Sequence[str],
    news: Sequence[str],
    over: bool,
) -> dict[str, Any]:
    """Return one look at a job; `news` is what `watch` says since the last one."""
    return {
        "schema": run_folder_SCHEMA,
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
    """Return which steps a window has and its trace on each rank; `outcomes` is empty if they were not awaited."""
    return {
        "schema": run_folder_SCHEMA,
        "run": run,
        "window": plan.window,
        "first_step": plan.first,
        "num_steps": plan.last - plan.first,
        "asked_by": plan.by,
        "report": report,
        "ranks": [{"rank": rank, **_trace(outcomes[rank])} for rank in sorted(outcomes)],
    }


def _rank(rank: Row) -> dict[str, Any]:
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
        "is_late": late.is_late,
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


# Memory as one answer, as JSON: what the trace and the step logs say of each rank, and each rank's snapshot.

_SCHEMA = 1


def memory_document(
    account: Account | None,
    snapshots: Mapping[int | None, Row],
    *,
    predicted: Sequence[Row] = (),
    what_ifs: Sequence[Row] = (),
    of_rank: int | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return `memory` as in the report (null without traces), memory of the logged steps, the snapshots, predicted
    next to measured memory, and the requested changes; the last two of `of_rank` only.
    """
    beside = account.run.beside if account else None
    return {
        "schema": _SCHEMA,
        "run": account.run.name if account else None,
        "memory": in_ms(account.memory) if account else None,
        "memory_steps": [memory_of_steps(log) for log in account.run.logs] if account else [],
        "memory_peaks": [{**peak, "rank": rank} for rank, peak in beside.memory_peaks.items()] if beside else [],
        "other_processes": [{"rank": one.rank, "size_bytes": one.others_bytes} for one in account.devices]
        if account
        else [],
        "snapshots": [{"rank": rank, **view, "path": Path(view.path).name} for rank, view in snapshots.items()],
        "predicted_rank": of_rank,
        "predicted": plain(predicted),
        "what_ifs": in_ms(what_ifs),
        "warnings": [*warnings, *(account.failures if account else ())],
    }
