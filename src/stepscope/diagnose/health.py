"""Is the run healthy, rank by rank? Each rank's step by what it is spent on, and who is late."""

from stepscope.analyze.account import Account
from stepscope.analyze.attribution.without_profiler import Floats
from stepscope.analyze.step.parts import PART_CODE
from stepscope.dataclass import dataclass

COLUMNS = {
    "compute": ("forward", "backward", "optimizer", "other_compute"),
    "transfer": ("exposed_transfer",),
    "wait": ("wait", "pipeline_bubble"),
    "data": ("data_loading",),
    "copies": ("copy",),
    "host": ("launch_gap", "host_sync", "allocator", "host_stall"),
    "unknown": ("unknown",),
}
"""parts of the budget by what the table calls them; together they are the step"""


@dataclass(frozen=True)
class RankHealth:
    """One rank's step."""

    rank: int
    host: str | None
    step_ns: float
    """median period while profiled"""
    pct: dict[str, float]
    """of the rank's step without the profiler's cost, by COLUMNS"""
    late_ns: float | None
    """own time beyond the others' median, where it is a straggler"""
    cause: str | None


def rank_health(account: Account) -> list[RankHealth]:
    """Return every rank that has a budget; none where no step was recorded."""
    if account.step is None:
        return []
    late = {s.rank: s for s in account.stragglers}
    known = [(view.rank, view.budget) for view in account.ranks if view.budget is not None]
    rows = []
    for (rank, budget), parts in zip(known, account.step.rank_part_ns, strict=True):
        found = late.get(rank.rank)
        rows.append(
            RankHealth(
                rank=rank.rank,
                host=rank.host,
                step_ns=budget.periods.median_ns,
                pct={column: _pct(parts, names) for column, names in COLUMNS.items()},
                late_ns=found.late_ns_per_step if found else None,
                cause=found.cause if found else None,
            )
        )
    return rows


def _pct(parts: Floats, names: tuple[str, ...]) -> float:
    whole = float(parts.sum())
    return 100 * float(parts[[PART_CODE[name] for name in names]].sum()) / whole if whole else 0.0
