"""The account as the JSON of the contract (schema 1). Times in milliseconds; unknown is null."""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from stepscope.analyze.account import Account, attempt
from stepscope.analyze.budget import PARTS
from stepscope.analyze.collective_costs import CollectiveRow, RankAccount, RankWait
from stepscope.analyze.kernels import Kernel, Operator, function_of
from stepscope.analyze.memory import MemoryView, RankMemory
from stepscope.analyze.owner_costs import CodeCosts, Cost, LineCost, ModuleCost
from stepscope.analyze.owner_places import Where
from stepscope.analyze.phases import Serving
from stepscope.analyze.replay.removal import is_around_step
from stepscope.analyze.steadiness import Steadiness
from stepscope.analyze.stragglers import Straggler
from stepscope.analyze.training_step import no_core_share
from stepscope.contract.run_folder import SCHEMA
from stepscope.diagnose.checks import Check, checks_of, guides_of
from stepscope.diagnose.finding import FAULTS, Finding
from stepscope.diagnose.findings import Diagnosis, budget_note, conclude
from stepscope.diagnose.recording import recording_of
from stepscope.errors import UsageError
from stepscope.records import dataclass
from stepscope.run.load import incomplete
from stepscope.run.rank import UNKNOWN_GROUP, Group, Rank, rank_ranges
from stepscope.run.side_files import SideFiles, StepLog
from stepscope.stats.robust import Spread
from stepscope.units import AS_IT_IS, NS_PER_MS, NS_PER_S, finite_document, ms, us

# Records as JSON values: names stay as they are, and only who writes a time says that it is in milliseconds.


def plain(value: Any) -> Any:
    """Return dataclasses, tuples, sets, enumerations and arrays as JSON values; what is not finite becomes null.

    >>> plain({"share": float("nan"), "ranks": (0, 1)})
    {'share': None, 'ranks': [0, 1]}
    """
    kind = type(value)
    if kind in AS_IT_IS:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if is_dataclass(kind):
        return {field.name: plain(getattr(value, field.name)) for field in fields(kind)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(v) for v in value)
    if isinstance(value, Enum):
        return value.name.lower()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def ms_or_none(time_ns: float | None) -> float | None:
    """Return milliseconds of a time that may be unknown."""
    return None if time_ns is None else ms(time_ns)


def in_ms(record: Any, times: Collection[str]) -> dict[str, Any]:
    """Return a record as a JSON object whose `times` are in milliseconds: `wait_ns` of `wait` becomes `wait_ms`.

    >>> in_ms({"rank": 3, "wait_ns": 1_500_000, "busy_ns": None}, ("wait", "busy"))
    {'rank': 3, 'wait_ms': 1.5, 'busy_ms': None}
    """
    values: dict[str, Any] = record if isinstance(record, dict) else vars(record)
    written = {f"{name}_ns": f"{name}_ms" for name in times}
    return {written.get(k, k): _time(v) if k in written else plain(v) for k, v in values.items()}


def _time(time_ns: Any) -> Any:
    if isinstance(time_ns, tuple):
        return [ms_or_none(t) for t in time_ns]
    return (
        {name: v if name == "count" else v / NS_PER_MS for name, v in asdict(time_ns).items()}
        if isinstance(time_ns, Spread)
        else ms_or_none(time_ns)
    )


# What lines and modules cost, as rows for every rendering, and as `code` and `modules` of the report's JSON.
#
# Lines are the user's own, and those of a library where no line of the user's is above it. A row's times include what
# was called from there, so rows do not add up; `own_...` is what no other row of the user's is inside of.

_MAX_ROWS = 50
_TIMES = (
    "device", "host", "blocked", "comm", "exposed", "backward_device", "backward_host", "own_device", "own_host",
    "saving",
)  # fmt: skip


@dataclass(frozen=True)
class CodeRow:
    """One line or module; times in ns per step, the mean over ranks."""

    #: empty for a module
    file: str
    line: int
    #: equal to `line` where that line is exact; else the next line that called anything, 0 where none did
    line_to: int
    function: str
    is_user: bool
    #: of a line: that which holds most of its time
    module: str | None
    #: kernels, copies and sets
    device_ns: float
    #: with `blocked_ns`
    host_ns: float
    blocked_ns: float
    comm_ns: float
    exposed_ns: float
    backward_device_ns: float
    backward_host_ns: float
    own_device_ns: float
    own_host_ns: float
    flops: float | None
    #: of its FLOPs over its device time, against the chip's peak
    mfu: float | None
    memory_bytes: float | None
    #: the longer of its time on the host and on the device, communication included, of the recorded step
    step_pct: float | None
    #: of the step without it; None where that was not replayed
    saving_ns: float | None
    #: it holds nearly everything: without it there is no step
    is_around_step: bool
    #: the line's text, None if not recorded
    source: str | None

    @property
    def owner(self) -> str:
        """Return what `--without` takes."""
        return f"{self.file}:{self.line}" if self.file else f"module:{self.module}"


@dataclass(frozen=True)
class CodeView:
    """What lines and modules cost on all ranks that have owners, or on one."""

    lines: tuple[CodeRow, ...]
    modules: tuple[CodeRow, ...]
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
        "code": [_line_json(row) for row in view.lines[:_MAX_ROWS]],
        "modules": [_module_json(row) for row in view.modules[:_MAX_ROWS]],
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
        "code": [_line_json(row) for row in view.lines],
        "modules": [_module_json(row) for row in view.modules],
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


def _line_json(row: CodeRow) -> dict[str, Any]:
    place = {name: getattr(row, name) for name in ("file", "line", "line_to", "function", "module", "source")}
    return {**place, **_cost_json(row)}


def _module_json(row: CodeRow) -> dict[str, Any]:
    return {"module": row.module, **_cost_json(row)}


def _cost_json(row: CodeRow) -> dict[str, Any]:
    return {
        **{f"{name}_ms": ms_or_none(getattr(row, f"{name}_ns")) for name in _TIMES},
        "step_pct": None if row.step_pct is None else round(row.step_pct, 3),
        "is_around_step": row.is_around_step,
        "flops": row.flops,
        "mfu": row.mfu,
        "memory_bytes": row.memory_bytes,
    }


def _of_rank(account: Account, rank: int) -> CodeCosts | None:
    for one, sums in zip(account.ownership, account.owner_sums, strict=True):
        if one is not None and sums is not None and one.rank.rank == rank:
            from stepscope.analyze.owner_costs import code_costs  # only for a single rank

            return code_costs([one], [sums])
    known = rank_ranges([one.rank.rank for one in account.ownership if one is not None])
    raise UsageError(f"--rank {rank} recorded no owners; ranks that did: {known}")


def _row(account: Account, code: CodeCosts, one: LineCost | ModuleCost, saved: Mapping[str, float]) -> CodeRow:
    cost, own, back = one.inclusive, one.own, one.backward
    place: dict[str, Any]
    if isinstance(one, LineCost):
        place = {name: getattr(one, name) for name in ("file", "line", "line_to", "function", "is_user", "module")}
        place["source"] = account.run.source.line(one.file, one.line)
    else:
        place = {"file": "", "line": 0, "line_to": 0, "function": "", "is_user": True, "source": None}
        place["module"] = one.path
    return CodeRow(
        **place,
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
        step_pct=100 * cost.largest_ns / max(account.step.profiled_ns, code.total.largest_ns) if account.step else None,
        saving_ns=saved.get(one.owner),
        is_around_step=is_around_step(code, one),
    )


def _mfu(account: Account, cost: Cost) -> float | None:
    peak = account.efficiency.peak_tflops
    if not peak or not cost.flops or not cost.device_ns:
        return None
    return cost.flops / (cost.device_ns / NS_PER_S) / (peak * 1e12)


# What each dimension of parallelism cost, as keys of the report's JSON. Times in milliseconds; unknown is null.

_TRAFFIC = ("time", "exposed", "wait", "transfer")
# by view: its lists of records, and which fields of those are times
TIMES: Mapping[str, Mapping[str, Collection[str]]] = {
    "buckets": {
        "buckets": ("ready", *_TRAFFIC),
        "ranks": (*_TRAFFIC, "backward", "first_delay", "tail", "hook_host", "hook_device"),
    },
    "sharding": {
        "ranks": (
            *("gather", "gather_exposed", "gather_wait"),
            *("scatter", "scatter_exposed", "scatter_wait"),
        )
    },
    "tensor_parallel": {"layers": ("time", "exposed", "wait", "compute"), "ranks": _TRAFFIC},
    "pipeline": {
        "ranks": (
            *("step", "forward", "backward", "other", "transfer", "wait", "gaps", "idle"),
            *("send", "receive", "exchange", "forward_microbatch", "backward_microbatch"),
        )
    },
    "experts": {"ranks": _TRAFFIC},
    "context_parallel": {"ranks": (*_TRAFFIC, "compute")},
}


def _by_strategy_json(account: Account) -> dict[str, Any]:
    strategy, views = account.strategy, account.views
    return {
        "name": strategy.name,
        "sure": strategy.sure,
        "dimensions": plain(strategy.dimensions),
        "other": plain(strategy.other),
        **{name: _view(getattr(views, name), times) for name, times in TIMES.items()},
    }


def _view(view: Any, times: Mapping[str, Collection[str]]) -> dict[str, Any] | None:
    if view is None:
        return None
    return {name: _part(name, value, times) for name, value in vars(view).items()}


def _part(name: str, value: Any, times: Mapping[str, Collection[str]]) -> Any:
    if name == "over_ranks":
        return in_ms(value, times["ranks"])
    return [in_ms(record, times[name]) for record in value] if name in times else plain(value)


# One rank as an object of the report's JSON. Times in milliseconds; unknown is null.


def _rank_budgets(account: Account) -> dict[int, dict[str, float]]:
    if account.step is None:
        return {}
    ranks = [view.rank.rank for view in account.ranks if view.budget is not None]
    parts = [{part: ms(ns) for part, ns in zip(PARTS, row, strict=True) if ns} for row in account.step.rank_part_ns]
    return dict(zip(ranks, parts, strict=True))


def _rank_json(account: Account, index: int, budgets: Mapping[int, dict[str, float]]) -> dict[str, Any]:
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
        "budget_ms_per_step": budgets.get(rank.rank),
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


# What the recorder measured next to the traces, as keys of the report's JSON: devices, live collectives, memory of each
# logged step, memory at the edges of regions, NCCL's log.

_MAX_POINTS = 400
_MEMORY = ("allocated_bytes", "reserved_bytes", "host_bytes")


def _beside_json(account: Account) -> dict[str, Any]:
    return {
        "devices": [{**asdict(d), "held_back": d.held_back} for d in account.devices],
        "memory_steps": [memory_of_steps(log) for log in account.run.logs],
        **beside_json(account.run.beside),
    }


def beside_json(beside: SideFiles) -> dict[str, Any]:
    """Return what the files next to the traces hold."""
    return {
        "collectives_live": [in_ms(c, ("time",)) for c in beside.collectives],
        "memory_edges": [asdict(e) for e in beside.memory[:_MAX_POINTS]],
        "memory_peaks": [{**peak, "rank": rank} for rank, peak in beside.memory_peaks.items()],
        "nccl": [asdict(n) for n in beside.nccl],
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
_MAX_EXAMPLES = 20


def report_json(account: Account, diagnosis: Diagnosis, *, details: bool = False) -> dict[str, Any]:
    """Return the report's JSON object; a number that is not finite is null, and a warning names it.

    `details` adds what pictures are drawn from.
    """
    conclusion, budgets = conclude(account, diagnosis), _rank_budgets(account)
    document = {
        "schema": SCHEMA,
        "run": _run(account),
        "ranks": [_rank_json(account, i, budgets) for i in range(len(account.ranks_read))],
        "step": _step(account),
        "efficiency": _efficiency(account),
        "energy": account.energy,
        "waterfall": _waterfall(account),
        "collectives": [_collective(row, account.run.beside) for row in account.collectives],
        **_beside_json(account),
        "operators": [_operator(o) for o in account.operators.top(_REPORT_MAX_ROWS)],
        "kernels": [kernel_json(k) for k in account.kernels.kernels[:_REPORT_MAX_ROWS]],
        "idle": [{"cause": cause, "ms_per_step": ms(ns)} for cause, ns in account.step.idle_ns.items()]
        if account.step
        else [],
        "critical_path": _critical_path(account),
        "checks": [
            asdict(check) for check in attempt(account.failures, "checks", lambda: checks_of(account), list[Check])
        ],
        "guides": plain(attempt(account.failures, "guides", lambda: guides_of(account), list)),
        "stragglers": [*map(_straggler, account.stragglers), *_late_by_line(account, diagnosis)],
        "serving": _serving(account.serving),
        "memory": memory_json(account.memory),
        "steadiness": steadiness_json(account.steadiness),
        "by_strategy": _by_strategy_json(account),
        "verdict": conclusion.verdict,
        "verdict_reason": conclusion.reason,
        "recording": _recording(account),
        **code_json(account),
        "examined": list(diagnosis.examined),
        "not_examined": [asdict(n) for n in diagnosis.not_examined],
        "budget_note": budget_note(account, conclusion),
        "not_judged": list(diagnosis.not_judged),
        "costly_lines": [_costly_line(account, line) for line in diagnosis.costly_lines],
        "findings": [_finding(f) for f in diagnosis.findings],
        "findings_combined": [
            {"ids": list(ids), "saving_ms_per_step": ms(saving)} for ids, saving in diagnosis.combined
        ],
        **({"details": _details(account, diagnosis)} if details else {}),
        # last: everything above may add to them
        "incomplete": [*incomplete(account.run), *dict.fromkeys(account.failures)],
        "warnings": list(account.warnings),
    }
    return finite_document(document)[0]


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
        "sources": [run.shown_path(r.trace.path) for r in run.ranks_read],
        "unreadable": len(run.unreadable),
    }


def _step(account: Account) -> dict[str, Any]:
    step, used = account.step, account.efficiency
    names = ("profiled_ms", "unprofiled_ms", "profiler_overhead_pct")
    waited = no_core_share(account.run.logs)
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
        "core_wait_ms": None if step is None or waited is None else ms(waited * step.step_ns),
        # of the part `unknown`
        "unmatched_comm_ms": None if step is None else ms(step.unmatched_ns),
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
        "live_busbw_gb_per_s": _rounded(_live_busbw(beside, row.op, row.group)),
        "nccl": _logged_choice(beside, row.op, row.group),
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
            "function": function_of(k.name),
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


def _costly_line(account: Account, line: Where) -> dict[str, Any]:
    step_ns = account.step.step_ns if account.step else 0.0
    place = {"file": line.file, "line": line.line, "module": line.module}
    return {**place, "critical_ms": ms(line.share * step_ns), "pct": round(100 * line.share, 3)}


def _late_by_line(account: Account, diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return the ranks that only a finding names, by a line that takes longer there."""
    named = {s.rank for s in account.stragglers}
    late = {rank: f for f in diagnosis.findings if f.id == "straggler" for rank in f.ranks if rank not in named}
    steps, unknown = account.num_steps, ("score", "slowdown")
    return [
        {
            "rank": rank,
            "cause": "host",
            "late_ms_per_step": ms_or_none(f.cost_ns),
            "steps_late": steps,
            "num_steps": steps,
            **dict.fromkeys(unknown),
            "persistent": True,
        }
        for rank, f in sorted(late.items())
    ]


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "id": f.id,
        "title": f.title,
        "ranks": list(f.ranks),
        "docs": f"docs/findings/{f.id}.md",
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
        "what_if": list(f.what_if),
        "shows": dict(FAULTS[f.id].shows),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
