"""A run without traces as the JSON of the contract: what its step logs say, and null for what only a trace can.

Keys are those of the report of a traced run.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.analyze.energy import energy_of
from stepscope.analyze.kernels import measured_kernels
from stepscope.analyze.log_stragglers import (
    has_waits,
    is_rare,
    late_ranks,
    log_lateness,
    median_ns,
    region_names,
    region_ns,
    shows_late_ranks,
)
from stepscope.analyze.steadiness import log_series, steadiness_of
from stepscope.contract.lateness import LateRank
from stepscope.contract.run_folder import SCHEMA
from stepscope.contract.step_line import HOST_WAIT
from stepscope.diagnose.finding import FINDING_IDS
from stepscope.document.report import kernel_rows
from stepscope.document.rows import empty_row, json_row, json_rows, ms_or_none
from stepscope.records import Row
from stepscope.run.core_time import core_wait_ns
from stepscope.run.light import LightRun
from stepscope.run.side_files import StepLog, number, unprofiled_step
from stepscope.side_file import is_number
from stepscope.units import NS_PER_S, finite_document, ms

_NO_TRACE = "no trace was recorded: what happens inside the steps is unknown; record without --light"


def light_json(run: LightRun) -> dict[str, Any]:
    """Return the report of a run without traces."""
    logs = run.logs
    late = late_ranks(logs, run.collective_times)
    known = shows_late_ranks(logs, run.collective_times, run.description)
    series = log_series(logs)
    steady = steadiness_of(series) if series is not None and len(series.dur_ns) > 1 else None
    counted = [name for name in region_names(logs) if not is_rare(logs, name)]
    found = unprofiled_step(logs)
    ranks = [_rank(log, counted) for log in logs]
    if late and not has_waits(logs, HOST_WAIT):  # the regions are the host's, the waits are not
        for rank, one in zip(ranks, log_lateness(logs, run.collective_times, window_steps=len(logs[0])), strict=True):
            rank["regions_ms"]["waiting"] = ms(max(0, max(x.own_ns for x in late) - one.own_ns))
    document = {
        "schema": SCHEMA,
        "run": _run(run),
        "ranks": ranks,
        "step": _step(run),
        "efficiency": empty_row("efficiency"),
        "energy": _energy(run),
        **{name: [] for name in ("waterfall", "collectives", "operators", "idle", "critical_path", "checks")},
        "kernels": json_rows("kernels", kernel_rows(measured_kernels(run.measured))),
        "stragglers": json_rows("stragglers", [_straggler(one) for one in late]),
        "memory": None,
        "steadiness": json_row("steadiness", steady),
        "by_strategy": {},
        "verdict": "straggler-bound" if late else "unclear",
        "verdict_reason": _reason(run, late, ranks, known=known),
        "code": [],
        "modules": [],
        "examined": [],
        "not_examined": [{"rule": rule, "needs": "a trace"} for rule in FINDING_IDS],
        "not_judged": [],
        "findings": [],
        "findings_combined": [],
        "rare_regions": [_rare_region(logs, name) for name in region_names(logs) if name not in counted],
        "incomplete": [],
        "warnings": [_NO_TRACE, *([found.uneven] if found and found.uneven else []), *run.warnings],
    }
    return finite_document(document)[0]


def step_ns(logs: Sequence[StepLog]) -> int | None:
    """Return the step: the median, or the mean where long steps recur; None where no step ran without the profiler."""
    found = unprofiled_step(logs)
    return None if found is None else found.mean_ns if found.uneven else found.median_ns


def _run(run: LightRun) -> dict[str, Any]:
    said = run.description
    versions, device = said.get("versions"), said.get("device")
    world, devices = said.get("world_size"), [one.device.get("uuid") for one in run.telemetry]
    return {
        "name": run.name,
        "world_size": world if isinstance(world, int) and not isinstance(world, bool) else len(run.logs),
        "num_ranks": len(run.logs),
        "num_steps": max(map(len, run.logs)),
        "num_devices": len(set(devices)) if all(devices) and len(devices) == len(run.logs) else None,
        "device": _text(device.get("name")) if isinstance(device, dict) else None,
        "backend": _text(said.get("backend")),
        "strategy": None,
        "torch": _text(versions.get("torch")) if isinstance(versions, dict) else None,
        "failure": _text(said.get("failure")),
        "sources": [],
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _rank(log: StepLog, counted: Sequence[str]) -> dict[str, Any]:
    regions = {name: median_ns(log, region_ns(log, name)) for name in counted}
    return {
        **empty_row("ranks"),
        "rank": log.rank,
        "host": _text(log.header.get("host")),
        "num_steps": len(log),
        "step_ms": [ms(d) for d in log.dur_ns.tolist()],
        "median_step_ms": ms_or_none(median_ns(log, log.dur_ns.astype(np.float64))),
        "regions_ms": {name: ms_or_none(ns) for name, ns in regions.items()},
    }


def _step(run: LightRun) -> dict[str, Any]:
    took_ns = step_ns(run.logs)

    def per_s(name: str) -> float | None:
        amount = run.description.get(name)
        return (
            amount * NS_PER_S / took_ns if took_ns and is_number(amount) and isinstance(amount, int | float) else None
        )

    return {
        "profiled_ms": None,
        "unprofiled_ms": ms_or_none(took_ns),
        "profiler_overhead_pct": None,
        "samples_per_s": per_s("samples_per_step"),
        "tokens_per_s": per_s("tokens_per_step"),
        "overlap_efficiency": None,
        "late_rank": None,
        "core_wait_ms": None if took_ns is None else ms_or_none(core_wait_ns(run.logs, took_ns, run.lost)),
        "starved": run.lost > 0,
        "budget": [],
    }


def _energy(run: LightRun) -> dict[str, Any]:
    tokens, samples = (number(run.description.get(f"{name}_per_step")) for name in ("tokens", "samples"))
    return energy_of(run.telemetry, run.logs, run.description, tokens_per_step=tokens, samples_per_step=samples)


def _straggler(late: LateRank) -> Row:
    return Row(late._asdict(), cause=None, late_ns_per_step=late.late_ns, persistent=late.persistent)


def _rare_region(logs: Sequence[StepLog], name: str) -> dict[str, Any]:
    times = [region_ns(log, name) for log in logs]
    return {
        "name": name,
        "ms_per_step": ms(max(float(np.nansum(one)) / max(len(one), 1) for one in times)),
        "steps": max(int((~np.isnan(one)).sum()) for one in times),
        "num_steps": max(map(len, logs)),
    }


def _reason(run: LightRun, late: Sequence[LateRank], ranks: Sequence[dict[str, Any]], *, known: bool) -> str:
    failure = _text(run.description.get("failure"))
    if not any(map(len, run.logs)):
        if failure:
            return f"no step was recorded: {failure}"
        return "no step was recorded: training ended before its first optimizer step"
    if not late and not known:
        return "step times alone do not show whether a rank is late: with NCCL ranks wait on the device; record a trace"
    if not late:
        none = "no rank is late; " if len(run.logs) > 1 else ""
        return f"{none}only step times were recorded, a trace shows what a step consists of"
    late_ms = ms(late[0].late_ns)
    mine = next(rank["regions_ms"] for rank in ranks if rank["rank"] == late[0].rank)
    others = [rank["regions_ms"] for rank in ranks if rank["rank"] != late[0].rank]
    more = {name: (took or 0.0) - float(np.median([o.get(name) or 0.0 for o in others])) for name, took in mine.items()}
    worst = max(more, key=lambda name: more[name], default=None)
    where = "a trace shows why"
    if worst is not None and more[worst] >= 0.5 * late_ms:
        where = f"{more[worst]:.3g} ms of it in {worst}"
    return f"rank {late[0].rank} is {late_ms:.3g} ms late per step; {where}"
