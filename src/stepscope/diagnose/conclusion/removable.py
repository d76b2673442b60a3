"""How much shorter would the step be without a whole category of its budget? The replay's answer, as a cross-check."""

from stepscope.analyze.account import Account
from stepscope.analyze.attribution.budget import host_device_copies
from stepscope.analyze.replay.changes import (
    Change,
    as_graph,
    faster_network,
    faster_work,
    without_allocator,
    without_data_wait,
    without_stalls,
    without_syncs,
)
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import to_step

_FAST = 100.0
"""times as fast: a network that no longer matters"""


def removable_ns(account: Account, category: str) -> float | None:
    """Return what the step would lose per step; None where no replay tells (compute, a bubble, the unknown)."""
    change = _change(account, category)
    if change is None or account.replay is None or account.step is None:
        return None
    try:
        saved = account.replay.period_ns - change(account.replay).period_ns
    except CircularWaits:
        return None
    return max(0.0, saved) * to_step(account.replay, account.step.step_ns)


def _change(account: Account, category: str) -> Change | None:
    if category == "communication-bound":
        return lambda replay: faster_network(replay, _FAST)
    if category == "data-bound":
        return without_data_wait
    if category == "copy-bound":
        copies = [host_device_copies(rank) for rank in account.run.ranks]
        return lambda replay: faster_work(replay, copies, 0.0)
    if category == "host-bound" and all(rank.has_device for rank in account.run.ranks):
        return _without_host
    return None


def _without_host(replay: Replay) -> Replay:
    for change in (without_stalls, without_allocator, without_syncs, as_graph):
        replay = change(replay)
    return replay
