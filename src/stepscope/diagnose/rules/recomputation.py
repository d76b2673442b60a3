"""`recomputation`: activation checkpointing repeats forward work in the backward pass."""

from collections import Counter

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.replay.changes import without_work
from stepscope.diagnose.finding import Candidate, Evidence, Where
from stepscope.diagnose.owned_change import at
from stepscope.diagnose.rules.limits import with_work_ns
from stepscope.diagnose.rules.measures import Mask, device_ms
from stepscope.diagnose.where import MAX_PLACES, user_lines
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind

_ENTRIES = ("_NoopSaveInputs", "CheckpointFunction")
"""what torch.utils.checkpoint runs first in a checkpointed block, after it has kept the state of the random numbers"""


def recomputation(account: Account) -> list[Candidate]:
    """Return the recomputed work as a cost."""
    chosen = [view.costs.recomputed & (view.rank.work.step >= 0) for view in account.ranks]
    repeated = device_ms(account, chosen)
    if not repeated:
        return []
    entered = [_first_launches(rank) for rank in account.run.ranks]
    return [
        Candidate(
            id="recomputation",
            title="Forward work is computed a second time in backward",
            cause="activation checkpointing discards activations and recomputes them",
            remedy="Checkpoint fewer blocks, or only cheap operators (selective checkpointing, torch.utils.checkpoint with a policy), as far "
            "as memory allows. The saving is of no recomputation at all.",
            change=lambda replay: without_work(replay, chosen, entered=entered),
            limit_ns=with_work_ns(account, repeated * 1e6),
            cost_ns=repeated * 1e6,
            evidence=(Evidence("recomputed device work per step", round(repeated, 3), "ms", "mean rank"),),
            where=_checkpointing_lines(account),
        )
    ]


def _checkpointing_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines that call checkpointed blocks, by how many they call: what is repeated stands in the blocks'
    own lines and in that of backward, and none of those is what to change.
    """
    found: Counter[Line] = Counter()
    for owned in account.ownership:
        if owned is None:
            continue
        names = owned.rank.trace.strings
        entries = np.array([names[name] in _ENTRIES for name in owned.calls.name.tolist()], bool)
        for stack in owned.by_call.stack[entries & ~owned.by_call.backward].tolist():
            if lines := user_lines(owned, stack):
                found[lines[-1]] += 1
    total = sum(found.values())
    return tuple(at(line, share=calls / total) for line, calls in found.most_common(MAX_PLACES))


def _first_launches(rank: Rank) -> Mask:
    """Return which device work was the first that a checkpointed block launched."""
    entries = np.sort(rank.trace["ts_ns"][rank.rows_named(lambda name: name in _ENTRIES, EventKind.HOST_OP)])
    first = np.zeros(len(rank.work), bool)
    launched = np.flatnonzero(rank.work.launch_row >= 0)
    when = rank.trace["ts_ns"][rank.work.launch_row[launched]]
    order = np.argsort(when, kind="stable")
    at = np.searchsorted(when[order], entries, side="right")
    first[launched[order[at[at < len(order)]]]] = True
    return first
