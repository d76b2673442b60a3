"""A trace without steps, taken as one long step: what its losses are over the window, nobody knows per what."""

from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account, account_of
from stepscope.run.rank import Rank
from stepscope.run.steps import Steps
from stepscope.trace.classify import EventKind

WHOLE_WINDOW = "whole window"
MAX_ITEMS = 60_000
"""of device work and collectives: a longer window is not replayed"""


def diagnosed_account(account: Account) -> Account:
    """Return the account that findings are made from: the same, or the window as one step where none was recorded."""
    size = sum(len(r.work) or len(r.collectives) for r in account.run.ranks)
    if any(len(r.steps) for r in account.run.ranks) or account.step is None or size > MAX_ITEMS:
        return account
    run = replace(account.run, ranks=tuple(_as_one_step(rank) for rank in account.run.ranks))
    # Windows of several ranks begin and end anywhere, so who is late in them says nothing.
    return replace(account_of(run), chip=account.chip, warnings=account.warnings, stragglers=())


def _as_one_step(rank: Rank) -> Rank:
    """Return a rank whose window is its only step."""
    span = _span(rank)
    if span is None:
        return rank
    start_ns, end_ns = (np.array([t], np.int64) for t in span)
    steps = Steps(np.zeros(1, np.int64), start_ns, end_ns, named=WHOLE_WINDOW, numbered=False)
    launched = rank.work.launch_row >= 0
    moment = rank.trace["ts_ns"][np.maximum(rank.work.launch_row, 0)]
    work = replace(rank.work, step=np.where(launched, steps.of(moment), -1).astype(np.int32))
    c = rank.collectives
    of_step = (
        work.step[c.device_index] if rank.has_device else steps.of(np.where(c.issue_ns > 0, c.issue_ns, c.start_ns))
    )
    return replace(rank, steps=steps, work=work, collectives=replace(c, step=of_step.astype(np.int32)))


def _span(rank: Rank) -> tuple[int, int] | None:
    """Return from the first launch to the end of the device's work; on a host alone the span of its operators."""
    if rank.has_device:
        launches = rank.trace["ts_ns"][rank.work.launch_row[rank.work.launch_row >= 0]]
        if not len(launches):
            return None
        return int(launches.min()), max(int(rank.work.end_ns.max()), int(launches.max()) + 1)
    rows = np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    if not len(rows):
        return None
    start = rank.trace["ts_ns"][rows]
    return int(start.min()), int((start + rank.trace["dur_ns"][rows]).max())
