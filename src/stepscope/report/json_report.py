"""The account as the JSON of the contract (schema 1). Times in milliseconds; unknown is null."""

from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.rank_account import RankAccount
from stepscope.run.rank import Rank
from stepscope.run_folder import SCHEMA
from stepscope.units import ms


def report_json(account: Account) -> dict[str, Any]:
    """Return the report's JSON object."""
    return {
        "schema": SCHEMA,
        "run": _run(account),
        "ranks": [_rank(r, a) for r, a in zip(account.run.ranks, account.ranks, strict=True)],
        "warnings": list(account.warnings),
    }


def _run(account: Account) -> dict[str, Any]:
    run = account.run
    versions = run.description.get("versions")
    return {
        "name": run.name,
        "world_size": run.world_size,
        "num_ranks": len(run.ranks),
        "num_steps": account.num_steps,
        "device": run.ranks[0].device_name,
        "backend": run.ranks[0].distributed.get("backend") or run.description.get("backend"),
        "torch": versions.get("torch") if isinstance(versions, dict) else None,
        "sources": [r.trace.path for r in run.ranks],
    }


def _rank(rank: Rank, account: RankAccount | None) -> dict[str, Any]:
    steps = rank.steps
    return {
        "rank": rank.rank,
        "rank_source": rank.rank_source,
        "host": rank.host,
        "num_events": rank.trace.num_events,
        "num_steps": len(steps),
        "step_ms": [ms(d) for d in (steps.end_ns - steps.start_ns).tolist()],
        **_window(account),
        "joins": {
            "device_events": rank.joins.device_events,
            "without_launch": rank.joins.without_launch,
            "without_op": rank.joins.without_op,
            "launches_without_work": rank.joins.launches_without_work,
            "reused_correlation": rank.joins.reused_correlation,
            "collectives": len(rank.collectives),
            "collectives_without_record": rank.collectives.unjoined,
        },
    }


def _window(account: RankAccount | None) -> dict[str, Any]:
    if account is None:
        names = ("window", "compute", "comm", "memory", "exposed_comm", "idle")
        return {**{f"{name}_ms": None for name in names}, "overlap_pct": None}
    return {
        "window_ms": ms(account.window_ns),
        "compute_ms": ms(account.compute.total_ns),
        "comm_ms": ms(account.comm.total_ns),
        "memory_ms": ms(account.memory.total_ns) if account.memory is not None else None,
        "exposed_comm_ms": ms(account.exposed_comm.total_ns),
        "idle_ms": ms(account.idle_ns),
        "overlap_pct": None if account.overlap_pct is None else round(account.overlap_pct, 3),
    }
