"""Where did every step of every rank go, in seven groups?"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.attribution.budget import RankBudget
from stepscope.analyze.step.parts import PARTS
from stepscope.analyze.step.periods import NO_STEP
from stepscope.report.html.data import GROUPS, Grid
from stepscope.run.rank import Rank
from stepscope.trace.table import Int64s

_GROUP_OF_PART = {
    "forward": "compute", "backward": "compute", "optimizer": "compute", "other_compute": "compute",
    "exposed_transfer": "transfer", "wait": "wait", "pipeline_bubble": "wait", "copy": "copy",
    "data_loading": "input", "launch_gap": "host", "host_sync": "host", "allocator": "host", "host_stall": "host",
    "unknown": "unknown",
}  # fmt: skip


def grid_of(account: Account) -> Grid | None:
    """Return the grid of a run, None where no rank has steps."""
    numbers = [_numbers(view.rank, view.budget) for view in account.ranks]
    steps = sorted({int(n) for mine in numbers for n in mine})
    if not steps:
        return None
    column = {number: i for i, number in enumerate(steps)}
    group_ns = np.full((len(GROUPS), len(numbers), len(steps)), np.nan)
    for row, (mine, view) in enumerate(zip(numbers, account.ranks, strict=True)):
        if view.budget is not None and len(mine):
            group_ns[:, row, [column[int(n)] for n in mine]] = _grouped(view.budget).T
    return Grid(tuple(view.rank.rank for view in account.ranks), tuple(steps), group_ns)


def _numbers(rank: Rank, budget: RankBudget | None) -> Int64s:
    """Return the step number of each of a rank's periods."""
    if budget is None or not rank.steps.known or (budget.periods.step == NO_STEP).any():
        return np.empty(0, np.int64)
    return rank.steps.number[budget.periods.step]


def _grouped(budget: RankBudget) -> Int64s:
    out = np.zeros((len(budget.part_ns), len(GROUPS)), np.int64)
    for code, part in enumerate(PARTS):
        out[:, GROUPS.index(_GROUP_OF_PART[part])] += budget.part_ns[:, code]
    return out
