"""What did one kind of communication cost each rank per step, and how do the ranks differ?"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from stepscope.analyze.ranks.window import RankAccount
from stepscope.analyze.step.periods import step_periods
from stepscope.dataclass import dataclass
from stepscope.intervals import covered_ns, union
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.rank import Rank
from stepscope.stats.robust import Spread, spread
from stepscope.trace.table import Int64s


@dataclass(frozen=True)
class RankTraffic:
    """Some collectives of one rank, per step. None is unknown."""

    rank: int
    count: float
    size_bytes: float | None
    """full buffers; None where any size is unknown"""
    time_ns: int
    """time in which at least one of them ran"""
    exposed_ns: int
    """of that, hidden neither behind compute nor behind copies"""
    wait_ns: int | None
    """until the last rank arrived; None where none could be matched across ranks"""
    transfer_ns: int | None


def rank_traffic(shared: AlignedRun, index: int, rows: Int64s, account: RankAccount) -> RankTraffic:
    """Return what these collectives of a rank cost per step; `rows` are those launched in recorded steps."""
    rank = shared.run.ranks[index]
    c, steps = rank.collectives, num_steps(rank)
    sizes, wait = c.full_bytes[rows], shared.wait_ns[index][rows]
    spans = union(c.start_ns[rows], c.end_ns[rows])
    exposed = int(covered_ns(account.exposed_comm, spans.start, spans.end).sum())
    waits = union(c.start_ns[rows], c.start_ns[rows] + np.maximum(wait, 0)).total_ns
    matched = bool(len(rows)) and not (wait == UNMATCHED).any()
    return RankTraffic(
        rank=rank.rank,
        count=len(rows) / steps,
        size_bytes=float(sizes.sum()) / steps if (sizes >= 0).all() else None,
        time_ns=round(spans.total_ns / steps),
        exposed_ns=round(exposed / steps),
        wait_ns=round(waits / steps) if matched else None,
        transfer_ns=round((spans.total_ns - waits) / steps) if matched else None,
    )


def hidden_pct(traffic: RankTraffic) -> float | None:
    """Return the share of the time that lies under other work, None without any time."""
    return 100 * (1 - traffic.exposed_ns / traffic.time_ns) if traffic.time_ns else None


def share_of_step_pct(traffic: RankTraffic, rank: Rank) -> float | None:
    """Return the exposed time of the step's period, None without steps."""
    periods = step_periods(rank)
    step_ns = round(periods.median_ns) if periods is not None and len(periods) else None
    return 100 * traffic.exposed_ns / step_ns if step_ns else None


def num_steps(rank: Rank) -> int:
    """Return the number of recorded steps, 1 for a trace that marks none."""
    return max(len(rank.steps), 1)


def launched_in_steps(rank: Rank) -> Int64s:
    """Return the collectives launched in recorded steps (without steps: in the trace), as they were asked for."""
    c = rank.collectives
    asked = c.issue_ns > np.iinfo(np.int64).min
    known = c.step >= 0 if len(rank.steps) else asked
    order = np.argsort(np.where(asked, c.issue_ns, c.start_ns), kind="stable")
    return order[known[order]]


def over_ranks(records: Sequence[Any]) -> dict[str, Spread]:
    """Return mean, min, max and std over ranks of every numeric field of one record per rank but `rank` itself."""
    if not records:
        return {}
    names = [f.name for f in fields(records[0]) if f.name != "rank"]
    columns = {name: [getattr(r, name) for r in records] for name in names}
    numeric = {name: _numbers(values) for name, values in columns.items()}
    spreads = {name: spread(values) for name, values in numeric.items() if values}
    return {name: s for name, s in spreads.items() if s is not None}


def _numbers(values: Sequence[Any]) -> list[float]:
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
