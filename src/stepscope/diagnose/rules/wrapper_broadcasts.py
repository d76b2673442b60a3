"""`redundant-communication` by the training wrapper: what it broadcasts in every forward pass, buffers in the first place."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.stacks import Line, Mask
from stepscope.analyze.replay.owners.part import part_for
from stepscope.analyze.replay.owners.removal import Part
from stepscope.contract.collectives import OP_CODE
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, without_parts
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only
from stepscope.diagnose.rules.measures import host_ms
from stepscope.diagnose.where import user_lines
from stepscope.stats.distinct import distinct

_BROADCAST = OP_CODE["broadcast"]


def wrapper_broadcasts(account: Account) -> list[Candidate]:
    """Return the broadcasts of a data-parallel wrapper's forward, with everything that is done for them as the cost."""
    masks = broadcasts_in_forward(account)
    known = [(one, mask) for one, mask in zip(account.ownership, masks, strict=True) if one is not None and mask.any()]
    if not known or len(known) < len(account.run.ranks):
        return []
    line = _line(*known[0])
    if line is None:
        return []
    calls, size, took = _per_step(known[0][0], known[0][1])
    return [
        Candidate(
            id="redundant-communication",
            title=f"{line[0]}:{line[1]} broadcasts {size / 2**20:.0f} MB of buffers in every forward pass",
            cause="the training wrapper sends the first rank's buffers to all ranks before each forward pass, and no "
            "compute runs beside it",
            remedy="Buffers that are constant (masks, tables) need not be sent: DistributedDataParallel(broadcast_buffers=False), "
            "or keep them as plain attributes. Running statistics may differ between ranks then, as without "
            "synchronisation. The saving is of the step without these broadcasts.",
            change=without_parts([_part(one, mask) for one, mask in known]),
            evidence=(
                Evidence("broadcasts in forward per step", round(calls, 1), "calls"),
                Evidence("bytes broadcast per step", round(size), "bytes"),
                Evidence("time of the broadcasts per step", host_ms(took), "ms"),
            ),
            where=(at(line),),
            what_if=(),
            doubt=0.25,
        )
    ]


def broadcasts_in_forward(account: Account) -> list[Mask]:
    """Return per rank which collectives a wrapper that leaves parameters whole broadcasts in its own forward."""
    none = [np.zeros(len(rank.collectives), bool) for rank in account.run.ranks]
    if not gradient_groups_only(account) or any(d.kind != "ddp" for d in account.strategy.dimensions):
        return none
    return [empty if one is None else _sent(one) for one, empty in zip(account.ownership, none, strict=True)]


def _sent(owned: Ownership) -> Mask:
    """Return the broadcasts that the outermost module asks for outside backward, by code that is not the user's."""
    c, owner = owned.rank.collectives, owned.by_collective
    root = np.array([*(not path for path in owned.modules), False], bool)
    library = owned.stacks.innermost != owned.stacks.innermost_user
    return (c.step >= 0) & (c.op == _BROADCAST) & ~owner.backward & root[owner.module] & library[owner.stack]


def _part(owned: Ownership, mask: Mask) -> Part:
    """Return everything the rank did where the broadcasts were asked for: filling and emptying their messages too."""
    stacks = distinct(owned.by_collective.stack[mask])
    return part_for(owned, lambda _, things: np.isin(things.stack, stacks) & ~things.backward)


def _line(owned: Ownership, mask: Mask) -> Line | None:
    """Return the innermost line of the user's above the broadcasts."""
    lines = user_lines(owned, int(owned.by_collective.stack[mask][0]))
    return lines[-1] if lines else None


def _per_step(owned: Ownership, mask: Mask) -> tuple[float, float, float]:
    """Return calls, bytes and ns of the broadcasts per step."""
    c, steps = owned.rank.collectives, max(len(owned.rank.steps), 1)
    took = int((c.end_ns - c.start_ns)[mask].sum())
    return int(mask.sum()) / steps, int(np.maximum(c.full_bytes[mask], 0).sum()) / steps, took / steps
