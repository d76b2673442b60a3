"""Whose line is a finding? The time that its fix takes away, item by item, and who owns that.

A rule knows its fix, not lines. What the fix changes in the replay tells what it is about: device work that gets
shorter, host time that goes, waits that end. Each of these has an owner.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.host.time import blocking_calls
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.where import Weighted, Where, where_of
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.program import Program
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import Fix
from stepscope.analyze.replay.taken_out import recorded_edges
from stepscope.trace.table import Int64s


def where_of_fix(account: Account, fix: Fix) -> tuple[Where, ...]:
    """Return the lines whose time a fix takes away; nothing where owners are unknown or no replay tells."""
    replay = account.replay
    if replay is None or fix.change is None or not any(account.ownership):
        return ()
    try:
        fixed = fix.change(replay)
    except CircularWaits:
        return ()
    found: list[Weighted] = []
    for one, before, after in zip(account.ownership, replay.programs, fixed.programs, strict=True):
        if one is not None and len(before) and len(before) == len(after):
            found += _changed(one, before, after, replay)
    return where_of(found, account.code)


def _changed(owned: Ownership, before: Program, after: Program, replay: Replay) -> list[Weighted]:
    """Return what got shorter in one rank's program: device work, host time, and calls that wait no more."""
    shorter = np.maximum(before.duration_ns - after.duration_ns, 0).astype(float)
    by_item = owned.by_work if owned.rank.has_device else owned.by_collective
    found = [Weighted(owned, by_item.at(before.device_index), shorter)]
    edges = recorded_edges(owned.rank, before, replay.steps)
    saved = np.maximum(_host_ns(before) - _host_ns(after), 0)[: len(edges) - 1]
    found.append(_host(owned, edges, saved))
    if owned.rank.has_device:
        found.append(_waits(owned, edges, before, after))
    return found


def _host_ns(program: Program) -> Int64s:
    return np.append(program.host.total_ns, program.tail.total_ns)


def _host(owned: Ownership, edges: Int64s, saved_ns: Int64s) -> Weighted:
    """Return the host's spans, each with its part of what was saved before the item that it lies before."""
    host = owned.host
    item = np.searchsorted(edges, host.start_ns, side="right") - 1
    inside = (item >= 0) & (item < len(saved_ns)) & host.runs
    item = np.where(inside, item, 0)
    took = np.where(inside, host.end_ns - host.start_ns, 0).astype(float)
    whole = np.bincount(item, took, minlength=len(saved_ns))
    return Weighted(owned, host.owner, took * (saved_ns / np.maximum(whole, 1))[item])


def _waits(owned: Ownership, edges: Int64s, before: Program, after: Program) -> Weighted:
    """Return the calls in which the host waited before items that no longer wait."""
    start, end, rows = blocking_calls(owned.rank, synchronisations_only=True)
    waited = np.append(before.released_by, before.tail_released_by)
    waits = np.append(after.released_by, after.tail_released_by)
    freed = (waited >= 0) & (waits != waited)
    item = np.searchsorted(edges, end, side="left") - 1
    use = (item >= 0) & (item < len(freed))
    use[use] = freed[item[use]]
    return Weighted(owned, owned.of_rows(rows), np.where(use, end - start, 0).astype(float))
