"""`redundant-communication` by line: gradients that a line sends once more, after the training wrapper has sent them.

    backward     the wrapper reduces its buckets                                    100 MB
    train.py:59  for p in model.parameters(): dist.all_reduce(p.grad)               100 MB: the same, again
    optimizer

Told by size: what a line sends between backward and optimizer is at least what the wrapper sent in backward. A norm or
a flag is next to nothing beside it.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line, Mask
from stepscope.analyze.replay.communication_changes import GRADIENT_OPS
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, ranks_with, without_lines
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only
from stepscope.records import once_per_record
from stepscope.stats.distinct import among

_ALL = 0.9
"""of the bytes that the wrapper sends: the gradients as a whole"""


def sent_again(account: Account) -> list[Candidate]:
    """Return the lines that send all gradients a second time."""
    return [_candidate(account, line) for line in lines_sending_again(account)]


@once_per_record
def lines_sending_again(account: Account) -> list[Line]:
    """Return the lines themselves."""
    return lines_on_all(account, _sends_again) if gradient_groups_only(account) else []


def rows_sent_again(account: Account) -> list[Mask]:
    """Return which collectives of each rank such a line asked for."""
    lines = lines_sending_again(account)
    found = []
    for rank, known in zip(account.run.ranks, account.line_work, strict=True):
        mask = np.zeros(len(rank.collectives), bool)
        for line in lines:
            if known is not None and line in known.lines:
                mask |= known.holding(line)[known.owned.by_collective.stack]
        found.append(mask)
    return found


def _sends_again(rank: RankLines, work: LineWork) -> bool:
    """Return whether a line sends as much between backward and optimizer as was sent inside backward."""
    if not work.collectives or work.modules or work.has_backward or work.optimizes:
        return False
    ran = work.last_ns > -np.iinfo(np.int64).max
    between = (work.first_ns > rank.backward_ns) & (work.last_ns < rank.optimizer_ns)
    if not ran.any() or not between[ran].all():
        return False
    owner = rank.owned.by_collective
    wrapper = _sent_bytes(rank, owner.backward)
    return _sent_bytes(rank, among(owner.stack, work.stacks) & ~owner.backward) >= _ALL * wrapper > 0


def _sent_bytes(rank: RankLines, chosen: Mask) -> int:
    c = rank.owned.rank.collectives
    return int(np.maximum(c.full_bytes[chosen & (c.step >= 0) & among(c.op, GRADIENT_OPS)], 0).sum())


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    size = steps = 0
    for known in ranks_with(account, line):
        size += _sent_bytes(known, known.holding(line)[known.owned.by_collective.stack])
        steps += max(len(known.owned.rank.steps), 1)
    return Candidate(
        id="redundant-communication",
        title=f"{place} sends all gradients again",
        cause=f"the training wrapper has synchronised the gradients when backward ends, and {place} does so once more",
        remedy="Leave it out: DistributedDataParallel and FSDP have averaged the gradients when backward() returns. "
        "The saving is of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(Evidence("bytes sent needlessly per step", round(size / steps), "bytes", place),),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"communication of the loop ({place})",
    )
