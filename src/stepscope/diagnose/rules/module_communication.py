"""`too-many-small-collectives` by module: layers that communicate inside forward and backward of a data-parallel job."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.ownership import OwnedWork, Ownership
from stepscope.analyze.owners.stacks import Mask
from stepscope.analyze.replay.owners.part import Choose, part_for
from stepscope.analyze.replay.owners.removal import NO_PART
from stepscope.diagnose.finding import Candidate, Evidence, Where
from stepscope.diagnose.owned_change import without_parts
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only
from stepscope.diagnose.rules.measures import host_ms
from stepscope.diagnose.where import costs_by_owner, places, top_modules
from stepscope.stats.distinct import distinct

_SMALL_BYTES = 1 << 20
_MANY = 8
"""collectives per step"""


def module_communication(account: Account) -> list[Candidate]:
    """Return the modules whose own forward pass communicates, where the wrapper leaves the parameters whole.

    A wrapper that shards parameters gathers them inside modules too: that is how it works.
    """
    if not gradient_groups_only(account) or any(d.kind != "ddp" for d in account.strategy.dimensions):
        return []
    modules = [_talking(one) if one is not None else frozenset() for one in account.ownership]
    known = [(one, mine) for one, mine in zip(account.ownership, modules, strict=True) if one is not None]
    calls = [_calls(one, mine) for one, mine in known]
    if not calls or min(n for n, _ in calls) < _MANY:
        return []
    parts = [
        NO_PART if one is None else part_for(one, _chooses(mine), device=False)
        for one, mine in zip(account.ownership, modules, strict=True)
    ]
    some = sorted(known[0][1], key=lambda path: (path.count("."), path))
    named = f"{len(some)} modules such as {some[len(some) // 2]}" if len(some) > 1 else f"module {some[0]}"
    return [
        Candidate(
            id="too-many-small-collectives",
            title=f"{named} communicate in forward and backward" if len(some) > 1 else f"{named} communicates",
            cause=f"{named} ask for {calls[0][0]:.0f} small collectives per step; all ranks wait for each of them, and no "
            "other work is ready meanwhile (SyncBatchNorm and the like)",
            remedy="Use layers that do not communicate (BatchNorm with enough samples per rank, GroupNorm), or "
            "communicate in fewer of them. The saving is of these modules without communication and without their "
            "host time; their kernels stay.",
            change=without_parts(parts),
            evidence=(
                Evidence("collectives of these modules per step", round(calls[0][0], 1), "calls"),
                Evidence("communication of these modules per step", host_ms(calls[0][1]), "ms"),
            ),
            where=_where(known),
            what_if=(),
            doubt=0.25,
        )
    ]


def _talking(owned: Ownership) -> frozenset[str]:
    """Return the modules that ask for small collectives outside backward."""
    c, owner = owned.rank.collectives, owned.by_collective
    mine = (c.step >= 0) & ~owner.backward & (owner.module >= 0) & (c.full_bytes < _SMALL_BYTES)
    return frozenset(path for m in distinct(owner.module[mine]).tolist() if (path := owned.modules[m]))


def _chooses(modules: frozenset[str]) -> Choose:
    def chosen(owned: Ownership, things: OwnedWork) -> Mask:
        fits = np.array([*(path in modules for path in owned.modules), False], bool)
        return fits[things.module]

    return chosen


def _calls(owned: Ownership, modules: frozenset[str]) -> tuple[float, float]:
    """Return how many collectives the modules ask for per step, and what those take."""
    c = owned.rank.collectives
    mine = _chooses(modules)(owned, owned.by_collective) & (c.step >= 0)
    steps = max(len(owned.rank.steps), 1)
    return float(mine.sum()) / steps, float((c.end_ns - c.start_ns)[mine].sum()) / steps


def _where(known: list[tuple[Ownership, frozenset[str]]]) -> tuple[Where, ...]:
    """Return lines and modules by the collectives' time."""
    costs = []
    for owned, modules in known:
        c, owner = owned.rank.collectives, owned.by_collective
        mine = _chooses(modules)(owned, owner) & (c.step >= 0)
        costs.append((owned, costs_by_owner(owner, (c.end_ns - c.start_ns) * mine.astype(float))))
    return (*places(costs)[:1], *top_modules(costs, most=2))
