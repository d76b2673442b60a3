"""The account as the JSON of the contract (schema 1). Times in milliseconds; unknown is null."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from stepscope.analyze.account import Account, attempt
from stepscope.analyze.budget import PARTS
from stepscope.analyze.collective_costs import RankAccount, link_rows
from stepscope.analyze.owner_costs import CodeCosts, Cost
from stepscope.analyze.replay.removal import is_around_step
from stepscope.contract.run_folder import SCHEMA
from stepscope.cost.operators import function_of
from stepscope.diagnose.checks import checks_of, guides_of
from stepscope.diagnose.finding import FAULTS, NOTABLE
from stepscope.diagnose.findings import Diagnosis, conclude
from stepscope.diagnose.measures import place_of, ranks_with
from stepscope.diagnose.recording import recording_of
from stepscope.document.consistency import consistent
from stepscope.document.rows import in_ms, json_row, json_rows, ms_or_none, plain
from stepscope.errors import UsageError
from stepscope.records import Row, dataclass, values_of
from stepscope.run.collectives import UNKNOWN_GROUP, Group
from stepscope.run.core_time import core_wait_ns
from stepscope.run.load import incomplete
from stepscope.run.side_files import SideFiles, StepLog
from stepscope.units import NS_PER_S, finite_document, ms, rank_ranges

# What lines and modules cost, as rows for every rendering, and as `code` and `modules` of the report's JSON.
#
# Lines are the user's own, and those of a library where no line of the user's is above it. A row's times include what
# was called from there, so rows do not add up; `own_...` is what no other row of the user's is inside of.

_MAX_ROWS = 50


@dataclass(frozen=True)
class CodeView:
    """What lines and modules cost on all ranks that have owners, or on one."""

    #: rows of `code` and `modules`, with `owner`: what `--without` takes
    lines: tuple[Row, ...]
    modules: tuple[Row, ...]
    costs: CodeCosts


def code_view(account: Account, *, rank: int | None = None, module_savings: bool = False) -> CodeView | None:
    """Return lines and modules with their costs, the largest first; None without owners.

    Savings are those of the step of the whole job, also in the view of one rank; modules have them on request.
    """
    whole = account.code
    costs = whole if rank is None or whole is None else _of_rank(account, rank)
    if costs is None or whole is None:
        return None
    kept = [one for one in costs.lines if one.is_user or one.own.largest_ns > 0]
    saved: dict[str, float] = dict(account.line_savings)
    if module_savings:
        saved |= account.module_savings
    lines = tuple(_row(account, costs, one, saved) for one in kept)
    return CodeView(lines, tuple(_row(account, costs, one, saved) for one in costs.modules), costs)


def code_json(account: Account) -> dict[str, Any]:
    """Return `code` and `modules` of the report's JSON, the first rows of each, and what has no owner."""
    view = code_view(account)
    if view is None:
        return {"code": [], "modules": [], "unowned": None}
    return {
        "code": json_rows("code", view.lines, _MAX_ROWS),
        "modules": json_rows("modules", view.modules, _MAX_ROWS),
        "unowned": _unowned_json(view.costs),
    }


def code_document(account: Account, view: CodeView) -> dict[str, Any]:
    """Return all lines and modules as the JSON of `stepscope code`."""
    return {
        "schema": SCHEMA,
        "run": account.run.name,
        "ranks": list(view.costs.ranks),
        "step_ms": ms_or_none(account.step.step_ns if account.step else None),
        "profiled_step_ms": ms_or_none(account.step.profiled_ns if account.step else None),
        "exact_lines": view.costs.exact_lines,
        "unowned": _unowned_json(view.costs),
        "code": json_rows("code", view.lines),
        "modules": json_rows("modules", view.modules),
    }


def operators_document(account: Account) -> dict[str, Any]:
    """Return all operators as the JSON of `stepscope ops`: sums over the window, means per rank."""
    return {
        "schema": SCHEMA,
        "run": account.run.name,
        "num_ranks": len(account.run.ranks),
        "num_steps": account.num_steps,
        "step_ms": ms_or_none(account.step.profiled_ns if account.step else None),
        "operators": json_rows("operators", account.operators.operators),
    }


def _unowned_json(costs: CodeCosts) -> dict[str, Any]:
    none = costs.unowned
    host, device = costs.unowned_host_share, costs.unowned_device_share
    return {
        "host_ms": ms(none.host_ns + none.blocked_ns),
        "device_ms": ms(none.device_ns),
        "comm_ms": ms(none.comm_ns),
        "host_pct": None if host is None else round(100 * host, 3),
        "device_pct": None if device is None else round(100 * device, 3),
    }


def _of_rank(account: Account, rank: int) -> CodeCosts | None:
    for one, sums in zip(account.ownership, account.owner_sums, strict=True):
        if one is not None and sums is not None and one.rank.rank == rank:
            from stepscope.analyze.owner_costs import code_costs  # only for a single rank

            return code_costs([one], [sums])
    known = rank_ranges([one.rank.rank for one in account.ownership if one is not None])
    raise UsageError(f"--rank {rank} recorded no owners; ranks that did: {known}")


def _row(account: Account, code: CodeCosts, one: Row, saved: Mapping[str, float]) -> Row:
    cost, own, back = one.inclusive, one.own, one.backward
    place = {name: one[name] for name in ("file", "line", "line_to", "function", "is_user", "module", "owner")}
    return Row(
        **place,
        source=account.run.source.line(one.file, one.line) if one.file else None,
        device_ns=cost.device_ns,
        host_ns=cost.host_ns + cost.blocked_ns,
        blocked_ns=cost.blocked_ns,
        comm_ns=cost.comm_ns,
        exposed_ns=cost.exposed_ns,
        backward_device_ns=back.device_ns,
        backward_host_ns=back.host_ns + back.blocked_ns,
        own_device_ns=own.device_ns,
        own_host_ns=own.host_ns + own.blocked_ns,
        flops=cost.flops,
        mfu=_mfu(account, cost),
        memory_bytes=cost.memory_bytes,
        step_pct=100 * cost.largest_ns / max(account.step.step_ns, code.total.largest_ns) if account.step else None,
        saving_ns=saved.get(one.owner),
        is_around_step=is_around_step(code, one),
    )


def _mfu(account: Account, cost: Cost) -> float | None:
    peak = account.efficiency.peak_tflops
    if not peak or not cost.flops or not cost.device_ns:
        return None
    return cost.flops / (cost.device_ns / NS_PER_S) / (peak * 1e12)


# What each dimension of parallelism cost, as keys of the report's JSON. Times in milliseconds; unknown is null.


def _by_strategy_json(account: Account) -> dict[str, Any]:
    strategy, views = account.strategy, account.views
    return {
        "name": strategy.name,
        "sure": strategy.sure,
        "dimensions": plain(strategy.dimensions),
        "other": plain(strategy.other),
        **in_ms(views),
    }


_OF_WINDOW = ("window_ns", "compute_ns", "comm_ns", "memory_ns", "exposed_comm_ns", "idle_ns", "overlap_pct")
_OF_WAIT = ("wait_ns", "transfer_ns", "unmatched_comm_ns", "waited_for_ns")


def rank_rows(account: Account) -> list[Row]:
    """Return the rows of `ranks`: all that were read."""
    clocks, budgets, several = account.shared.whole.clocks, _rank_budgets(account), len(account.ranks_read) > 1
    return [
        Row(
            rank=rank.rank,
            rank_source=rank.rank_source,
            host=rank.host,
            device=rank.device_name,
            num_events=rank.num_events,
            num_steps=rank.steps.known,
            step_ns=[] if rank.steps.is_window else (rank.steps.end_ns - rank.steps.start_ns).tolist(),
            **_window(view.window),
            **(view.wait or dict.fromkeys(_OF_WAIT)),
            budget_ns_per_step=budgets.get(rank.rank),
            clock_offset_ns=int(clocks.offset_ns[i]) if several and clocks.known[i] else None,
            clock_uncertainty_ns=float(clocks.uncertainty_ns[i]) if several and clocks.known[i] else None,
            clock_drift_ppm=float(clocks.drift_ppm[i]),
            joins={
                **rank.joins,
                "collectives": len(rank.collectives),
                "collectives_without_record": rank.collectives.unjoined,
            },
            path=rank.trace.path,
        )
        for i, view in enumerate(account.ranks_read)
        for rank in (view.rank,)
    ]


def _rank_budgets(account: Account) -> dict[int, dict[str, float]]:
    if account.step is None:
        return {}
    ranks = [view.rank.rank for view in account.ranks if view.budget is not None]
    parts = [{part: ns for part, ns in zip(PARTS, row, strict=True) if ns} for row in account.step.rank_part_ns]
    return dict(zip(ranks, parts, strict=True))


def _window(window: RankAccount | None) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if window is not None and not window.host_only:
        known = {
            "compute_ns": window.compute.total_ns,
            "comm_ns": window.comm.total_ns,
            "memory_ns": window.memory.total_ns if window.memory is not None else None,
            "exposed_comm_ns": window.exposed_comm.total_ns,
            "idle_ns": window.idle_ns,
            "overlap_pct": window.overlap_pct,
        }
    return dict.fromkeys(_OF_WINDOW) | {"window_ns": window and window.window_ns} | known


# What the recorder measured next to the traces, as keys of the report's JSON: devices, live collectives, memory of each
# logged step, memory at the edges of regions, NCCL's log.

_MAX_POINTS = 400
_MEMORY = ("allocated_bytes", "reserved_bytes", "host_bytes")


def _beside_json(account: Account) -> dict[str, Any]:
    return {
        "devices": json_rows("devices", account.devices),
        "memory_steps": [memory_of_steps(log) for log in account.run.logs],
        **beside_json(account.run.beside),
    }


def beside_json(beside: SideFiles) -> dict[str, Any]:
    """Return what the files next to the traces hold."""
    return {
        "collectives_live": json_rows("collectives_live", beside.collectives),
        "memory_edges": plain(beside.memory[:_MAX_POINTS]),
        "memory_peaks": [{**peak, "rank": rank} for rank, peak in beside.memory_peaks.items()],
        "nccl": json_rows("nccl", beside.nccl),
        "windows": [str(w) for w in beside.windows],
    }


def memory_of_steps(log: StepLog) -> dict[str, Any]:
    """Return the memory samples of one rank's step log, thinned to the largest of equal stretches of steps."""
    columns = {name: log.column(f"memory.{name}") for name in _MEMORY}
    sampled = np.flatnonzero(~np.all([np.isnan(c) for c in columns.values()], axis=0))
    stretches = np.array_split(sampled, max(1, min(len(sampled), _MAX_POINTS)))
    chosen = [s[np.argmax(_size(columns, s))] for s in stretches if len(s)]
    return {
        "rank": log.rank,
        "step": [int(log.step[i]) for i in chosen],
        **{name: [None if np.isnan(c[i]) else int(c[i]) for i in chosen] for name, c in columns.items()},
    }


def _size(columns: dict[str, Any], steps: Any) -> Any:
    known = columns["allocated_bytes"] if not np.isnan(columns["allocated_bytes"]).all() else columns["host_bytes"]
    return np.nan_to_num(known[steps])


def _live_busbw(beside: SideFiles, op: str, group: Group) -> float | None:
    """Return the mean over ranks of the bus bandwidth over the whole job, None where it was not timed.

    Where the trace does not say the group, the only one that ran the operation is meant.
    """
    of_op = [c for c in beside.collectives if c.op == op]
    if group == UNKNOWN_GROUP:
        mine = of_op if len({c.group_desc for c in of_op}) == 1 else []
    else:
        names = {group.name, group.desc}
        mine = [c for c in of_op if {c.group, c.group_desc} & names and group.size in (None, c.group_size)]
    timed = [c.busbw_gb_per_s for c in mine if c.busbw_gb_per_s is not None]
    return float(np.mean(timed)) if timed else None


def _logged_choice(beside: SideFiles, op: str, group: Group) -> dict[str, Any] | None:
    """Return what NCCL's logs say of an operation: algorithms, protocols, channels, transports; None without a log.

    Choices are logged by operation and size, not by group: a rank count that differs from the group's rules a log out.
    """
    logs = [
        log
        for log in beside.nccl
        if group.size is None or (not log.communicators or any(c.num_ranks == group.size for c in log.communicators))
    ]
    if not logs:
        return None
    chosen: dict[tuple[str, str, int | None], int] = {}
    for choice in (c for log in logs for c in log.choices if c.op == op):
        key = (choice.algorithm, choice.protocol, choice.channels)
        chosen[key] = chosen.get(key, 0) + choice.count
    names = ("algorithm", "protocol", "channels")
    ordered = sorted(chosen.items(), key=lambda item: -item[1])
    return {
        "choices": [{**dict(zip(names, key, strict=True)), "count": count} for key, count in ordered],
        "transports": sorted({name for log in logs for name in log.transports}),
    }


_REPORT_MAX_ROWS = 50


def report_json(account: Account, diagnosis: Diagnosis, *, details: bool = False) -> dict[str, Any]:
    """Return the report's JSON object; a number that is not finite is null, and a warning names it.

    `details` adds what pictures are drawn from.
    """
    conclusion = conclude(account, diagnosis)
    costly_lines: list[Row] = attempt(account.failures, "costly lines", lambda: _costly_lines(account), list)
    document = {
        "schema": SCHEMA,
        "run": _run(account),
        "ranks": json_rows("ranks", rank_rows(account)),
        "step": _step(account),
        "efficiency": json_row("efficiency", account.efficiency),
        "energy": account.energy,
        "waterfall": json_rows("waterfall", account.waterfall.rows or ()),
        "collectives": json_rows("collectives_by_group", collective_table(account)),
        "links": json_rows("links", link_rows(account.collectives)),
        **_beside_json(account),
        "operators": json_rows("operators", account.operators.operators[:_REPORT_MAX_ROWS]),
        "kernels": json_rows("kernels", kernel_rows(account.kernels.kernels[:_REPORT_MAX_ROWS])),
        "idle": [{"cause": cause, "ms_per_step": ms(ns)} for cause, ns in account.step.idle_ns.items()]
        if account.step
        else [],
        "critical_path": json_rows("critical_path", account.critical_path.segments if account.critical_path else ()),
        "checks": json_rows("checks", attempt(account.failures, "checks", lambda: checks_of(account), list)),
        "guides": plain(attempt(account.failures, "guides", lambda: guides_of(account), list)),
        "stragglers": json_rows("stragglers", straggler_rows(account, diagnosis)),
        "serving": in_ms(account.serving),
        "memory": in_ms(account.memory),
        "steadiness": json_row("steadiness", account.steadiness),
        "by_strategy": _by_strategy_json(account),
        "verdict": conclusion.verdict,
        "verdict_reason": conclusion.reason,
        "recording": _recording(account),
        **code_json(account),
        "examined": list(diagnosis.examined),
        "not_examined": [asdict(n) for n in diagnosis.not_examined],
        "not_judged": list(diagnosis.not_judged),
        "costly_lines": json_rows("costly_lines", costly_lines),
        "findings": json_rows("findings", finding_rows(diagnosis)),
        "findings_combined": [
            {"ids": list(ids), "saving_ms_per_step": ms(saving)} for ids, saving in diagnosis.combined
        ],
        **({"details": _details(account, diagnosis)} if details else {}),
        # last: everything above may add to them
        "incomplete": [*incomplete(account.run), *dict.fromkeys(account.failures)],
        "warnings": list(account.warnings),
    }
    return consistent(finite_document(document)[0])


def _details(account: Account, diagnosis: Diagnosis) -> dict[str, Any]:
    from stepscope.document.details import details_json  # what only pictures need

    return details_json(account, diagnosis)


def _recording(account: Account) -> dict[str, Any]:
    recording = recording_of(account)
    return {
        "kind": recording.kind,
        "ranks_missing": list(recording.ranks_missing),
        "cannot_show": list(recording.cannot_show),
        "line": recording.line,
    }


def kernel_rows(kernels: Iterable[Any]) -> list[Row]:
    """Return the rows of `kernels`."""
    return [Row(values_of(k), function=function_of(k.name)) for k in kernels]


def _num_devices(account: Account) -> int | None:
    """Return the number of devices, None where the recorder did not sample those of all ranks."""
    groups = {tuple(sorted((d.rank, *d.shared_with))) for d in account.devices}
    return len(groups) if len(account.devices) == len(account.run.ranks) else None


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
        "num_devices": _num_devices(account),
        "backend": run.ranks[0].distributed.get("backend") or run.description.get("backend"),
        "strategy": account.strategy.name,
        "torch": versions.get("torch") if isinstance(versions, dict) else None,
        "window": run.window,
        "asked_by": run.asked_by,
        "failure": text if isinstance(text := run.description.get("failure"), str) else None,
        "sources": [run.shown_path(r.trace.path) for r in run.ranks_read],
        "unreadable": len(run.unreadable),
    }


def _step(account: Account) -> dict[str, Any]:
    step, used = account.step, account.efficiency
    names = ("profiled_ms", "unprofiled_ms", "profiler_overhead_pct")
    waited_ns = None if step is None else core_wait_ns(account.run.logs, step.step_ns, account.run.lost)
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
        # with `starved` in addition to all times of the report, else within them
        "core_wait_ms": ms_or_none(waited_ns),
        "starved": account.run.lost > 0,
        # of the part `unknown`
        "unmatched_comm_ms": None if step is None else ms(step.unmatched_ns),
        "budget": json_rows("step_budget", step.parts if step else ()),
    }


def collective_table(account: Account) -> list[Row]:
    """Return the rows of `collectives_by_group`."""
    beside = account.run.beside
    return [
        Row(
            row,
            process_group=row.group.desc or row.group.name,
            group_size=row.group.size,
            live_busbw_gb_per_s=_live_busbw(beside, row.op, row.group),
            nccl=_logged_choice(beside, row.op, row.group),
        )
        for row in account.collectives
    ]


def straggler_rows(account: Account, diagnosis: Diagnosis) -> list[Row]:
    """Return the rows of `stragglers`; last the ranks that only a finding names, by a line that takes longer there."""
    named = {s.rank for s in account.stragglers}
    late = {rank: f for f in diagnosis.findings if f.id == "straggler" for rank in f.ranks if rank not in named}
    steps, unknown = account.num_steps, ("score", "slowdown")
    by_line = [
        Row(
            rank=rank,
            cause="host",
            late_ns_per_step=f.cost_ns,
            steps_late=steps,
            num_steps=steps,
            **dict.fromkeys(unknown),
            persistent=True,
        )
        for rank, f in sorted(late.items())
    ]
    return [*account.stragglers, *by_line]


def _costly_lines(account: Account) -> list[Row]:
    """Return the lines that hold most of the critical path: the first three, and more that hold a notable share."""
    step_ns, lines, code = account.step.step_ns if account.step else 0.0, account.critical_lines, account.code
    scale = min(1.0, step_ns / max(sum(lines.values()), 1.0))
    known = {(one.file, one.line): one for one in (code.lines if code else ())}
    around = {line for line, one in known.items() if code and is_around_step(code, one)}
    inside = ((line, ns * scale) for line, ns in lines.items() if ns > 0 and line not in around)
    largest = sorted(inside, key=lambda one: -one[1])[:5]
    shown = [one for n, one in enumerate(largest) if n < 3 or one[1] >= NOTABLE * step_ns]
    saved = dict(account.line_savings)
    others = (place_of(line) for line, _ in shown if line in known and place_of(line) not in saved)
    saved |= account.savings_without(others)
    return [
        Row(
            file=line[0],
            line=line[1],
            module=known[line].module if line in known else None,
            critical_ns=ns,
            pct=100 * ns / step_ns if step_ns else None,
            # of the step without it; None where that was not replayed
            saving_ns=saved.get(place_of(line)),
            # it runs part of a model, of backward or of the optimizer: its time is training itself
            trains=None
            if account.lines_are_sampled
            else any(
                work.has_backward or work.optimizes or bool(work.modules)
                for work in (rank.lines[line] for rank in ranks_with(account, line))
            ),
            sampled=account.lines_are_sampled,
        )
        for line, ns in shown
    ]


def finding_rows(diagnosis: Diagnosis) -> list[Row]:
    """Return the rows of `findings`."""
    return [
        Row(
            values_of(f),
            docs=f"docs/findings/{f.id}.md",
            where=[{**asdict(w), "share": round(w.share, 4)} for w in f.where],
            shows=dict(FAULTS[f.id].shows),
            evidence=[
                {name: value for name, value in asdict(one).items() if name != "of_step" or not value}
                for one in f.evidence
            ],
        )
        for f in diagnosis.findings
    ]
