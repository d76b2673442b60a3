"""`redundant-communication` by line: collectives that the user's code adds to those of the training wrapper."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, ranks_with, without_lines
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only


def user_communication(account: Account) -> list[Candidate]:
    """Return lines that communicate outside forward, backward and optimizer, where a wrapper synchronises gradients."""
    if not gradient_groups_only(account) or not _is_wrapped(account):
        return []
    return [_candidate(account, line) for line in lines_on_all(account, _is_extra)]


def _is_wrapped(account: Account) -> bool:
    """Return whether collectives are asked for inside backward on every rank: a wrapper sees to the gradients."""
    known = [one for one in account.ownership if one is not None]
    return bool(known) and all(
        bool((one.by_collective.backward & (one.rank.collectives.step >= 0)).any()) for one in known
    )


def _is_extra(rank: RankLines, work: LineWork) -> bool:
    """Return whether a line sends something that neither the loss nor this step's update can be waiting for."""
    if not work.apart or not work.collectives or work.modules:
        return False
    ran = work.last_ns > -np.iinfo(np.int64).max
    before = work.last_ns < rank.forward_ns
    after = (work.first_ns > rank.backward_ns) & (work.first_ns > rank.optimizer_ns)
    return bool(ran.any() and (before | after)[ran].all())


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    calls, size, steps = 0, 0, 0
    for known in ranks_with(account, line):
        c, owner = known.owned.rank.collectives, known.owned.by_collective
        mine = known.holding(line)[owner.stack] & (c.step >= 0)
        calls += int(mine.sum())
        size += int(np.maximum(c.full_bytes[mine], 0).sum())
        steps += max(len(known.owned.rank.steps), 1)
    return Candidate(
        id="redundant-communication",
        title=f"{place} communicates in every step, outside the training wrapper",
        cause=f"{place} asks for {calls / steps:.0f} collectives per step beside those that synchronise gradients",
        remedy="Weights that start equal stay equal where gradients are synchronised: send them once. Reduce metrics "
        "every N steps, in one call. The saving is of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(
            Evidence("collectives of the line per step", round(calls / steps, 1), "calls", place),
            Evidence("bytes sent per step", round(size / steps), "bytes", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"communication of the loop ({place})",
    )
