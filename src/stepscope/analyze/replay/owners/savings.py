"""What would the step save without each of some lines or modules? One replay each, all from the same beginning."""

from collections.abc import Iterable, Sequence

from stepscope.analyze.owners.cost import CodeCosts, Cost, LineCost, ModuleCost
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.selection import owner_name
from stepscope.analyze.owners.sums import OwnerSums
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.owners.part import claimed_ns, part_of
from stepscope.analyze.replay.owners.removal import NO_PART, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import Fix, bounded, to_step

MAX_REPLAYED = 10
WHOLE_STEP = 0.95
"""share of the host's and of the device's owned time from which a line is around the step (`main()`), not in it"""


def owner_savings(
    replay: Replay,
    owners: Iterable[str],
    *,
    ownership: Sequence[Ownership | None],
    sums: Sequence[OwnerSums | None],
    step_ns: float,
) -> dict[str, float]:
    """Return what the step saves without each owner, on all ranks, in ns; those that cannot be replayed are missing.

    `replay` is `owned_replay`'s; the numbers are those of `stepscope whatif --without`, without the interval.
    """
    known = [one for one in ownership if one is not None]
    found = {}
    for owner in owners:
        name = owner_name(owner, known)
        parts = [NO_PART if one is None else part_of(one, name) for one in ownership]
        each = [claimed_ns(o, s, name) for o, s in zip(ownership, sums, strict=True) if o is not None and s is not None]
        fix = Fix(change=None, limit_ns=max(each, default=0.0))
        try:
            saved = replay.period_ns - taken_out(replay, parts).period_ns
        except CircularWaits:
            continue
        found[owner] = max(0.0, bounded(saved * to_step(replay, step_ns), fix, step_ns=step_ns))
    return found


def worth_replaying(code: CodeCosts, of: Iterable[LineCost | ModuleCost]) -> list[str]:
    """Return the first owners that the user can change: lines of the user's own and modules, none around the step."""
    owners = [one.owner for one in of if not is_around_step(code, one) and (isinstance(one, ModuleCost) or one.is_user)]
    return owners[:MAX_REPLAYED]


def is_around_step(code: CodeCosts, one: LineCost | ModuleCost) -> bool:
    """Return whether a line or module holds nearly all that ranks did: without it there is no step."""

    def held(cost: Cost) -> tuple[float, float]:
        return cost.host_ns + cost.blocked_ns, cost.device_ns + cost.comm_ns

    each = zip(held(one.inclusive), held(code.total), held(code.unowned), strict=True)
    return all(own >= WHOLE_STEP * (total - unowned) for own, total, unowned in each)
