"""`memory-bound-kernels` by line: tensors that the user's code puts into another memory order.

Fusing does not take such a copy out where products or convolutions stand on both sides of it; one memory order
throughout does.
"""

from collections import Counter

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.stacks import Line, Mask
from stepscope.analyze.replay.owners.removal import NO_PART, Part
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, without_parts
from stepscope.diagnose.rules.measures import device_ms, host_ms
from stepscope.diagnose.where import MAX_PLACES, user_lines
from stepscope.intervals import EMPTY, union
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct

_COPIES = "aten::contiguous"
_MIN_SHARE = 0.05
"""of the step: a model that needs a copy here and there is no fault"""


def layout_copies(account: Account) -> list[Candidate]:
    """Return the copies into another memory order that lines of the user's ask for, all together."""
    if account.step is None:
        return []
    chosen = [np.zeros(len(r.work), bool) if o is None else _copies(o) for r, o in _ranks(account)]
    total = device_ms(account, chosen) * 1e6
    if not total or total < _MIN_SHARE * account.step.step_ns:
        return []
    took: Counter[Line] = Counter()
    for (_, owned), mask in zip(_ranks(account), chosen, strict=True):
        if owned is not None:
            took += _by_line(owned, mask)
    lines = took.most_common(MAX_PLACES)
    named = ", ".join(f"{file}:{number}" for (file, number), _ in lines)
    steps = sum(max(len(rank.steps), 1) for rank in account.run.ranks)
    return [
        Candidate(
            id="memory-bound-kernels",
            title=f"{named} put{'s' if len(lines) == 1 else ''} tensors into another memory order",
            cause="contiguous() copies the whole tensor where its memory order is another; gradients follow it in backward",
            remedy="Keep one memory order through the model (channels_last for convolutions with Linear and LayerNorm between) and "
            "leave contiguous() out where the next operator takes strides. The saving is of the step without these "
            "copies in forward.",
            change=without_parts(
                [NO_PART if o is None else _part(o, m) for (_, o), m in zip(_ranks(account), chosen, strict=True)]
            ),
            cost_ns=total,
            evidence=(
                Evidence("copies into another memory order per step", host_ms(total), "ms", "mean rank"),
                *(
                    Evidence("copies of the line per step", host_ms(ns / steps), "ms", f"{file}:{number}")
                    for (file, number), ns in lines
                ),
            ),
            where=tuple(at(line, share=ns / sum(took.values())) for line, ns in lines),
            what_if=(),
            doubt=0.3,
            sureness=0.7,
        )
    ]


def _ranks(account: Account) -> list[tuple[Rank, Ownership | None]]:
    return list(zip(account.run.ranks, account.ownership, strict=True))


def _asked(owned: Ownership) -> Mask:
    """Return the calls of contiguous() in the user's own lines, outside backward and outside other operators."""
    calls, by, names = owned.calls, owned.by_call, owned.rank.trace.strings
    named = np.array([names[name] == _COPIES for name in calls.name.tolist()], bool)
    innermost = owned.stacks.innermost
    users = (innermost >= 0) & (innermost == owned.stacks.innermost_user)
    return named & users[by.stack] & ~by.backward


def _copies(owned: Ownership) -> Mask:
    """Return the device work of those calls."""
    work = owned.rank.work
    call = owned.calls.at_rows(work.op_row)
    inside = np.append(owned.calls.nearest(_asked(owned)) >= 0, False)
    return inside[call] & (work.step >= 0)


def _part(owned: Ownership, copies: Mask) -> Part:
    """Return the copies with the host's time for them."""
    rows = distinct(owned.calls.nearest(_asked(owned))[owned.calls.at_rows(owned.rank.work.op_row[copies])])
    host = union(owned.calls.start_ns[rows], owned.calls.end_ns[rows])
    none = np.zeros(len(owned.rank.collectives), bool)
    return Part(host, EMPTY, copies, none, np.empty(0, np.int64))


def _by_line(owned: Ownership, copies: Mask) -> Counter[Line]:
    """Return what the copies take by the line that asks for them."""
    work, found = owned.rank.work, Counter[Line]()
    for row in np.flatnonzero(copies).tolist():
        if lines := user_lines(owned, int(owned.by_work.stack[row])):
            found[lines[-1]] += int(work.end_ns[row] - work.start_ns[row])
    return found
