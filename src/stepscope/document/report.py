"""The account as the JSON of the contract (schema 1). Times in milliseconds; unknown is null."""

from dataclasses import asdict
from typing import Any

from stepscope.analyze.account import Account, attempt
from stepscope.analyze.kernels.kernels import Kernel
from stepscope.analyze.kernels.operators import Operator
from stepscope.analyze.memory.usage import MemoryView, RankMemory
from stepscope.analyze.ranks.collectives import CollectiveRow
from stepscope.analyze.ranks.stragglers import Straggler
from stepscope.analyze.step.serving import Serving
from stepscope.analyze.step.steadiness import Steadiness
from stepscope.contract.run_folder import SCHEMA
from stepscope.diagnose.checks import Check, checks_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.guides import guides_of
from stepscope.diagnose.verdict import conclude
from stepscope.document.by_strategy import by_strategy_json
from stepscope.document.code import code_json
from stepscope.document.plain_values import in_ms, ms_or_none, plain
from stepscope.document.ranks import rank_json
from stepscope.document.side_files import beside_json, live_busbw, logged_choice
from stepscope.json_text import finite_document
from stepscope.run.side_files import SideFiles
from stepscope.units import ms

_MAX_ROWS = 50
_MAX_EXAMPLES = 20


def report_json(account: Account, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the report's JSON object; a number that is not finite is null, and a warning names it."""
    conclusion = conclude(account, diagnosis)
    document = {
        "schema": SCHEMA,
        "run": _run(account),
        "ranks": [rank_json(account, i) for i in range(len(account.ranks_read))],
        "step": _step(account),
        "efficiency": _efficiency(account),
        "waterfall": _waterfall(account),
        "collectives": [_collective(row, account.run.beside) for row in account.collectives],
        **beside_json(account),
        "operators": [_operator(o) for o in account.operators.top(_MAX_ROWS)],
        "kernels": [kernel_json(k) for k in account.kernels.kernels[:_MAX_ROWS]],
        "idle": [{"cause": cause, "ms_per_step": ms(ns)} for cause, ns in account.step.idle_ns.items()]
        if account.step
        else [],
        "critical_path": _critical_path(account),
        "checks": [
            asdict(check) for check in attempt(account.failures, "checks", lambda: checks_of(account), list[Check])
        ],
        "guides": plain(attempt(account.failures, "guides", lambda: guides_of(account), list)),
        "stragglers": [_straggler(s) for s in account.stragglers],
        "serving": _serving(account.serving),
        "memory": memory_json(account.memory),
        "steadiness": steadiness_json(account.steadiness),
        "by_strategy": by_strategy_json(account),
        "verdict": conclusion.verdict,
        "verdict_reason": conclusion.reason,
        **code_json(account),
        "not_examined": [asdict(n) for n in diagnosis.not_examined],
        "not_judged": list(diagnosis.not_judged),
        "findings": [_finding(f) for f in diagnosis.findings],
        "findings_combined": [
            {"ids": list(ids), "saving_ms_per_step": ms(saving)} for ids, saving in diagnosis.combined
        ],
        "warnings": list(account.warnings),
    }
    return finite_document(document)[0]


def _run(account: Account) -> dict[str, Any]:
    run = account.run
    versions = run.description.get("versions")
    return {
        "name": run.name,
        "world_size": run.world_size,
        "num_ranks": len(run.ranks_read),
        **({"ranks_in_full": [rank.rank for rank in run.ranks]} if run.everyone else {}),
        "num_steps": account.num_steps,
        "device": account.device_name,
        "backend": run.ranks[0].distributed.get("backend") or run.description.get("backend"),
        "strategy": account.strategy.name,
        "torch": versions.get("torch") if isinstance(versions, dict) else None,
        "window": run.window,
        "asked_by": run.asked_by,
        "sources": [run.shown_path(r.trace.path) for r in run.ranks_read],
    }


def _step(account: Account) -> dict[str, Any]:
    step, used = account.step, account.efficiency
    names = ("profiled_ms", "unprofiled_ms", "profiler_overhead_pct")
    if step is None:
        times: dict[str, Any] = dict.fromkeys(names)
    else:
        overhead = None if step.overhead_pct is None else round(step.overhead_pct, 3)
        times = dict(zip(names, (ms(step.profiled_ns), ms_or_none(step.unprofiled_ns), overhead), strict=True))
    return {
        **times,
        "samples_per_s": used.samples_per_s,
        "tokens_per_s": used.tokens_per_s,
        "overlap_efficiency": account.overlap_efficiency,
        "late_rank": account.late_rank,
        "budget": [
            {
                "part": p.part,
                "ms_per_step": ms(p.ns_per_step),
                "pct": round(p.pct, 4),
                "profiler_correction_ms": ms(p.correction_ns),
                "recurring_ms": ms(p.recurring_ns),
            }
            for p in (step.parts if step else ())
        ],
    }


def _efficiency(account: Account) -> dict[str, Any]:
    used = account.efficiency
    return {
        "mfu": used.mfu,
        "hfu": used.hfu,
        "flops_per_step": used.flops_per_step,
        "flops_source": used.flops_source,
        "peak_tflops": used.peak_tflops,
        "peak_source": used.peak_source,
        "peak_precision": used.peak_precision,
        "precision": used.precision,
    }


def _waterfall(account: Account) -> list[dict[str, Any]]:
    return [
        {
            "loss": row.loss,
            "pct_of_peak": row.pct_of_peak,
            "ms_per_step": ms_or_none(row.ns_per_step),
            "plus_minus": row.plus_minus,
        }
        for row in account.waterfall.rows or ()
    ]


def _collective(row: CollectiveRow, beside: SideFiles) -> dict[str, Any]:
    return {
        "op": row.op,
        "group": row.group.desc or row.group.name,
        "group_size": row.group.size,
        "count": row.count,
        "bytes": row.size_bytes,
        "wait_ms": ms_or_none(row.wait_ns),
        "transfer_ms": ms_or_none(row.transfer_ns),
        "exposed_ms": ms(row.exposed_ns),
        "algbw_gb_per_s": _rounded(row.algbw_gb_per_s),
        "busbw_gb_per_s": _rounded(row.busbw_gb_per_s),
        "late_rank": row.late_rank,
        "unmatched": row.unmatched,
        "live_busbw_gb_per_s": _rounded(live_busbw(beside, row.op, row.group)),
        "nccl": logged_choice(beside, row.op, row.group),
    }


def _operator(o: Operator) -> dict[str, Any]:
    return plain(
        {
            "name": o.name,
            "shapes": o.shapes,
            "calls": o.calls,
            "host_self_ms": ms(o.host_self_ns),
            "host_total_ms": ms(o.host_total_ns),
            "device_self_ms": ms(o.device_self_ns),
            "device_total_ms": ms(o.device_total_ns),
            "host_memory_bytes": o.host_memory_bytes,
            "device_memory_bytes": o.device_memory_bytes,
        }
    )


def kernel_json(k: Kernel) -> dict[str, Any]:
    """Return one kernel of the table."""
    return plain(
        {
            "name": k.name,
            "family": k.family,
            "count": k.count,
            "total_ms": ms(k.total_ns),
            "mean_ms": ms(k.mean_ns),
            "max_ms": ms(k.max_ns),
            "share": k.share,
            "tensor_core": k.tensor_core,
            "precision": k.precision,
            "tflops": k.tflops,
            "gb_per_s": k.gb_per_s,
            "bound": k.bound,
            "bound_from": k.bound_from,
            "occupancy_pct": k.occupancy_pct,
            "occupancy_from": k.occupancy_from,
            "sm_pct": k.sm_pct,
            "dram_pct": k.dram_pct,
            "tensor_pct": k.tensor_pct,
            "stall": k.stall,
            "stall_share": k.stall_share,
            "count_per_step": k.count_per_step,
            "step_ms": ms_or_none(k.step_ns),
            "measured_share": k.measured_share,
        }
    )


def _serving(serving: Serving | None) -> dict[str, Any] | None:
    if serving is None:
        return None
    return {**plain(serving), "kinds": [in_ms(kind, ("step",)) for kind in serving.kinds]}


def memory_json(memory: MemoryView | None) -> dict[str, Any] | None:
    """Return the memory of all ranks, None where nothing of it was recorded."""
    if memory is None:
        return None
    return {**plain(memory), "ranks": [_rank_memory(rank) for rank in memory.ranks]}


def _rank_memory(rank: RankMemory) -> dict[str, Any]:
    peak, timeline = (None if part is None else in_ms(part, ("time",)) for part in (rank.peak, rank.timeline))
    return {**plain(rank), "peak": peak, "timeline": timeline}


_STEADY_TIMES = ("warm_up", "median", "mean", "std", "p10", "p90", "p99", "min", "max", "over_ranks")


def steadiness_json(steady: Steadiness | None) -> dict[str, Any] | None:
    """Return how steady the steps are, None where too few are known."""
    if steady is None:
        return None
    names = {"spikes_ns_per_step": "spikes_ms_per_step"}
    written = {names.get(k, k): v for k, v in in_ms(steady, _STEADY_TIMES).items()}
    return {
        **written,  # in the order of the fields
        "spikes": [{"step": s.step, "ms": ms(s.dur_ns), "extra_ms": ms(s.extra_ns)} for s in steady.spikes],
        "spikes_ms_per_step": ms(steady.spikes_ns_per_step),
    }


def _critical_path(account: Account) -> list[dict[str, Any]]:
    path = account.critical_path
    if path is None:
        return []
    return [
        {"rank": s.rank, "what": s.what, "name": s.name, "ms_per_step": ms(s.ns_per_step), "pct": round(s.pct, 3)}
        for s in path.segments
    ]


def _straggler(s: Straggler) -> dict[str, Any]:
    return {
        "rank": s.rank,
        "cause": s.cause,
        "late_ms_per_step": ms(s.late_ns_per_step),
        "steps_late": s.steps_late,
        "num_steps": s.num_steps,
        "score": s.score,
        "slowdown": round(s.slowdown, 4),
        "persistent": s.persistent,
    }


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "id": f.id,
        "title": f.title,
        "ranks": list(f.ranks),
        "cost_ms_per_step": ms_or_none(f.cost_ns),
        "saving_ms_per_step": ms(f.saving_ns),
        "saving_low_ms": ms(f.low_ns),
        "saving_high_ms": ms(f.high_ns),
        "saving_pct": round(f.saving_pct, 3),
        "saving_alone_ms": ms(f.alone_ns),
        "confidence": f.confidence,
        "where": [{**asdict(w), "share": round(w.share, 4)} for w in f.where],
        "evidence": [asdict(e) for e in f.evidence],
        "cause": f.cause,
        "remedy": f.remedy,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
