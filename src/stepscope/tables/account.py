"""The tables of what was found: the account of the run and its findings, one row per line of the report."""

from collections.abc import Callable, Iterable
from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.budget import CAUSE_NAMES, PARTS
from stepscope.analyze.collective_costs import link_rows
from stepscope.diagnose.checks import checks_of
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.report import code_view, collective_table, finding_rows, kernel_rows, rank_rows
from stepscope.document.rows import TABLES
from stepscope.records import Row, values_of
from stepscope.tables.table import Table, table_of_rows


def account_table(name: str, account: Account, diagnosis: Diagnosis | None) -> Table:
    """Return one of these tables; those of findings need the diagnosis."""
    rows = _OF_ACCOUNT[name](account) if diagnosis is None else _OF_FINDINGS[name](diagnosis)
    return table_of_rows(TABLES[name], rows)


def _by_step(account: Account, names: tuple[str, ...], name: str, times: Callable[[Any], Any]) -> Iterable[Row]:
    for view in account.ranks:
        rank, budget = view.rank, view.budget
        time_ns = times(budget) if budget is not None else None
        if budget is None or time_ns is None:
            continue
        for step, row in zip(budget.periods.step.tolist(), time_ns.tolist(), strict=True):
            number = int(rank.steps.number[step]) if step >= 0 else None
            for one, ns in zip(names, row, strict=True):
                yield Row({"rank": rank.rank, "step": number, name: one, "time_ns": ns})


def _memory(account: Account) -> Iterable[Row]:
    for rank in account.memory.ranks if account.memory else ():
        yield from (Row(values_of(s), rank=rank.rank) for s in rank.steps)


def _code_by_rank(account: Account) -> Iterable[Row]:
    for one in account.code.lines if account.code else ():
        for rank, cost in one.by_rank.items() if one.is_user else ():
            host_ns = cost.host_ns + cost.blocked_ns
            yield Row(values_of(cost), rank=rank, file=one.file, line=one.line, host_ns=host_ns)


def _evidence(diagnosis: Diagnosis) -> Iterable[Row]:
    for f in diagnosis.findings:
        yield from (Row(values_of(e), finding=f.id, place=e.where) for e in f.evidence)


_OF_ACCOUNT: dict[str, Callable[[Account], Iterable[Any]]] = {
    "ranks": rank_rows,
    "budget": lambda a: _by_step(a, PARTS, "part", lambda budget: budget.part_ns),
    "idle": lambda a: _by_step(a, CAUSE_NAMES, "cause", lambda b: b.cause_ns if b.on_device else None),
    "step_budget": lambda a: a.step.parts if a.step else (),
    "waterfall": lambda a: a.waterfall.rows or (),
    "kernels": lambda a: kernel_rows(a.kernels.kernels),
    "operators": lambda a: a.operators.operators,
    "collectives_by_group": collective_table,
    "links": lambda a: link_rows(a.collectives),
    "stragglers": lambda a: a.stragglers,
    "checks": checks_of,
    "critical_path": lambda a: a.critical_path.segments if a.critical_path else (),
    "memory": _memory,
    "code": lambda a: view.lines if (view := code_view(a)) else (),
    "modules": lambda a: view.modules if (view := code_view(a)) else (),
    "code_by_rank": _code_by_rank,
    "warnings": lambda a: (Row(warning=warning) for warning in a.warnings),
}
_OF_FINDINGS: dict[str, Callable[[Diagnosis], Iterable[Any]]] = {"findings": finding_rows, "evidence": _evidence}

# tables that need the findings too
NEED_FINDINGS = tuple(_OF_FINDINGS)
