"""Lines that only late ranks execute: what such a rank does beside what all ranks do."""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.replay.changes import Change
from stepscope.analyze.replay.owners.part import part_for
from stepscope.analyze.replay.owners.removal import NO_PART
from stepscope.diagnose.owned_change import without_parts


def lone_lines(account: Account, ranks: Sequence[int]) -> list[Line]:
    """Return the outermost lines that every one of these ranks executes and no other; none without all owners."""
    known = [one for one in account.line_work if one is not None]
    if len(known) < len(account.run.ranks):
        return []
    theirs = [one for one in known if one.owned.rank.rank in ranks]
    usual = set[Line]().union(*(one.lines for one in known if one.owned.rank.rank not in ranks))
    if not theirs or not usual:
        return []
    alone = [{line: work for line, work in one.lines.items() if line not in usual} for one in theirs]
    found = [set(one.outermost(lines)) for one, lines in zip(theirs, alone, strict=True)]
    return sorted(set.intersection(*found))


def without_lone_lines(account: Account, ranks: Sequence[int], lines: Sequence[Line]) -> Change:
    """Return the change in which these ranks do not execute the lines; collectives stay, others may take part."""
    parts = []
    for known in account.line_work:
        if known is None or known.owned.rank.rank not in ranks:
            parts.append(NO_PART)
            continue
        holds = np.logical_or.reduce([known.holding(line) for line in lines])
        parts.append(part_for(known.owned, lambda _, things, holds=holds: holds[things.stack]))  # type: ignore[misc]
    return without_parts(parts, collectives=False)
