"""The tables of what was found: the account of the run and its findings, one row per line of the report."""

from collections.abc import Callable, Iterable
from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.budget import CAUSE_NAMES, PARTS
from stepscope.diagnose.checks import checks_of
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.report import CodeRow, code_view
from stepscope.tables.schema import TABLES
from stepscope.tables.table import Table, table_of_rows

Row = tuple[Any, ...]


def account_table(name: str, account: Account, diagnosis: Diagnosis | None) -> Table:
    """Return one of the tables in ACCOUNT_TABLES; those of findings need the diagnosis."""
    if name in _OF_FINDINGS:
        assert diagnosis is not None
        return table_of_rows(TABLES[name], _OF_FINDINGS[name](diagnosis))
    return table_of_rows(TABLES[name], _OF_ACCOUNT[name](account))


def _ranks(account: Account) -> Iterable[Row]:
    clocks, several = account.shared.clocks, len(account.run.ranks) > 1
    for i, view in enumerate(account.ranks):
        rank, wait = view.rank, view.wait
        sure = several and bool(clocks.known[i])
        yield (
            rank.rank,
            rank.rank_source,
            rank.host,
            rank.device_name,
            rank.trace.num_events,
            rank.steps.known,
            *_window(view.window),
            *((wait.wait_ns, wait.transfer_ns, wait.unmatched_ns) if wait else (None, None, None)),
            int(clocks.offset_ns[i]) if sure else None,
            float(clocks.uncertainty_ns[i]) if sure else None,
            rank.trace.path,
        )


def _window(window: Any) -> Row:
    if window is None:
        return (None,) * 7
    memory_ns = None if window.memory is None else window.memory.total_ns
    return (
        window.window_ns,
        window.compute.total_ns,
        window.comm.total_ns,
        memory_ns,
        window.exposed_comm.total_ns,
        window.idle_ns,
        window.overlap_pct,
    )


def _budget(account: Account) -> Iterable[Row]:
    return _by_step(account, PARTS, lambda budget: budget.part_ns)


def _idle(account: Account) -> Iterable[Row]:
    return _by_step(account, CAUSE_NAMES, lambda budget: budget.cause_ns if budget.on_device else None)


def _by_step(account: Account, names: tuple[str, ...], times: Callable[[Any], Any]) -> Iterable[Row]:
    for view in account.ranks:
        rank, budget = view.rank, view.budget
        time_ns = times(budget) if budget is not None else None
        if budget is None or time_ns is None:
            continue
        for step, row in zip(budget.periods.step.tolist(), time_ns.tolist(), strict=True):
            number = int(rank.steps.number[step]) if step >= 0 else None
            yield from ((rank.rank, number, name, ns) for name, ns in zip(names, row, strict=True))


def _memory(account: Account) -> Iterable[Row]:
    for rank in account.memory.ranks if account.memory else ():
        yield from ((rank.rank, s.step, s.start_bytes, s.peak_bytes, s.end_bytes) for s in rank.steps)


def _fields(name: str, rows: Iterable[Any]) -> Iterable[Row]:
    columns = [column.name for column in TABLES[name].columns]
    for row in rows:
        yield tuple(getattr(row, column) for column in columns)


def _collectives_by_group(account: Account) -> Iterable[Row]:
    for c in account.collectives:
        yield (
            c.op, c.group.desc or c.group.name, c.group.size, c.count, c.size_bytes, c.wait_ns, c.transfer_ns,
            c.exposed_ns, c.algbw_gb_per_s, c.busbw_gb_per_s, c.late_rank, c.unmatched,
        )  # fmt: skip


def _code(account: Account) -> Iterable[CodeRow]:
    view = code_view(account)
    return view.lines if view else ()


def _modules(account: Account) -> Iterable[CodeRow]:
    view = code_view(account)
    return view.modules if view else ()


def _code_by_rank(account: Account) -> Iterable[Row]:
    for one in account.code.lines if account.code else ():
        for rank, cost in one.by_rank.items() if one.is_user else ():
            host_ns = cost.host_ns + cost.blocked_ns
            yield rank, one.file, one.line, cost.device_ns, host_ns, cost.comm_ns, cost.exposed_ns


def _findings(diagnosis: Diagnosis) -> Iterable[Row]:
    for f in diagnosis.findings:
        yield (
            f.id, f.title, ",".join(map(str, f.ranks)), f.cost_ns, f.saving_ns, f.low_ns, f.high_ns, f.saving_pct,
            f.alone_ns, f.confidence, f.cause, f.remedy,
        )  # fmt: skip


def _evidence(diagnosis: Diagnosis) -> Iterable[Row]:
    for f in diagnosis.findings:
        yield from ((f.id, e.what, e.value, e.unit, e.where) for e in f.evidence)


_OF_ACCOUNT: dict[str, Callable[[Account], Iterable[Row]]] = {
    "ranks": _ranks,
    "budget": _budget,
    "idle": _idle,
    "step_budget": lambda a: _fields("step_budget", a.step.parts if a.step else ()),
    "waterfall": lambda a: _fields("waterfall", a.waterfall.rows or ()),
    "kernels": lambda a: _fields("kernels", a.kernels.kernels),
    "operators": lambda a: _fields("operators", a.operators.operators),
    "collectives_by_group": _collectives_by_group,
    "stragglers": lambda a: _fields("stragglers", a.stragglers),
    "checks": lambda a: _fields("checks", checks_of(a)),
    "critical_path": lambda a: _fields("critical_path", a.critical_path.segments if a.critical_path else ()),
    "memory": _memory,
    "code": lambda a: _fields("code", _code(a)),
    "modules": lambda a: _fields("modules", _modules(a)),
    "code_by_rank": _code_by_rank,
    "warnings": lambda a: ((warning,) for warning in a.warnings),
}
_OF_FINDINGS: dict[str, Callable[[Diagnosis], Iterable[Row]]] = {"findings": _findings, "evidence": _evidence}

# tables that need the findings too
NEED_FINDINGS = tuple(_OF_FINDINGS)
