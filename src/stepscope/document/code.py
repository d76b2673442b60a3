"""What lines and modules cost, as rows for every rendering, and as `code` and `modules` of the report's JSON.

Lines are the user's own, and those of a library where no line of the user's is above it. A row's times include what was
called from there, so rows do not add up; `own_...` is what no other row of the user's is inside of.
"""

from collections.abc import Mapping
from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.owner_costs import CodeCosts, Cost, LineCost, ModuleCost
from stepscope.analyze.replay.removal import is_around_step
from stepscope.contract.run_folder import SCHEMA
from stepscope.dataclass import dataclass
from stepscope.document.values import ms_or_none
from stepscope.errors import UsageError
from stepscope.run.rank import rank_ranges
from stepscope.units import NS_PER_S, ms

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
    #: the line's text, None where it was not kept
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
    """Return lines and modules with their costs, the largest first; None where nobody recorded owners.

    Savings are those of the step of the whole job, also in the view of one rank; modules have them where asked for.
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
            from stepscope.analyze.owner_costs import code_costs  # only where one rank is asked for

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
