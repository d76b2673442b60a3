"""`launch-overhead` by line: the same calls for one element after the other in a comprehension.

    each = [attention(q[:, h], k[:, h], v[:, h]) for h in range(8)]

What a comprehension does for one element does not wait for what it did for another, as a loop over layers does: one
call can do it for all of them. Then the host prepares one call, and kernels that are too short to fill the device take
the time of one. Longer ones stay as they are.
"""

import re
from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.roofline import SHORT_NS
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.replay.changes import Change
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, parts_of_lines, ranks_with, without_parts
from stepscope.run.source_text import SourceText, code_of
from stepscope.stats.distinct import among

_MIN_TIMES = 4
"""elements of one comprehension"""
_TOKEN = re.compile(r"\w+|[\[\](){}]")


def comprehensions(account: Account) -> list[Candidate]:
    """Return lines of forward whose comprehension makes the same calls for each element."""
    lines = lines_on_all(account, lambda known, work: _is_repeated(account.run.source, known, work))
    return [_candidate(account, line) for line in lines]


def is_comprehension(text: str) -> bool:
    """Return whether a line of source holds a comprehension as a whole.

    >>> [is_comprehension(s) for s in ("y = [f(x) for x in xs]", "for x in f(xs):", "g('[for x in')", "[f(x) for x")]
    [True, False, False, False]
    """
    depth, inside = 0, 0
    for token in _TOKEN.findall(code_of(text)):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
            if 0 < inside > depth:
                return True
        elif token == "for" and depth > 0:
            inside = depth
    return False


def _is_repeated(source: SourceText, known: RankLines, work: LineWork) -> bool:
    if work.apart or work.optimizes or work.collectives or work.to_host:
        return False
    text = source.line(*work.line)
    return text is not None and is_comprehension(text) and _times(known, work)[0] >= _MIN_TIMES


def _times(known: RankLines, work: LineWork) -> tuple[float, str]:
    """Return how many elements the line's comprehension has, by the operator that takes it the longest, and which."""
    owned = known.owned
    calls, by = owned.calls, owned.by_call
    mine = among(by.stack, work.stacks) & ~by.backward & (owned.rank.steps.of(calls.start_ns) >= 0)
    around = np.append(mine, False)[calls.parent]
    tops = mine & ~around
    if not tops.any():
        return 0.0, ""
    took = np.bincount(calls.name[tops], weights=(calls.end_ns - calls.start_ns)[tops])
    longest = int(np.argmax(took))
    turn = mine[~around]  # in the order of calls, without what a call of the line calls itself
    executed = int((turn & ~np.append(False, turn[:-1])).sum())
    return float((calls.name[tops] == longest).sum()) / max(executed, 1), owned.rank.trace.strings[longest]


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    times, operator = max(_times(known, known.lines[line]) for known in ranks_with(account, line))
    return Candidate(
        id="launch-overhead",
        title=f"{place} calls {operator} {times:.0f} times where one call would do",
        cause=f"{place} does the same for each of {times:.0f} elements in a comprehension, which do not wait for each other: "
        "many small launches, forward and backward",
        remedy="Do it for all elements in one call, where their shapes allow it: a batched product or attention, one table "
        "with offsets for several embeddings, torch.func.vmap. The saving is of one element's host time, and of kernels "
        f"below {SHORT_NS // 1000} us as one.",
        change=_batched(account, line, times),
        evidence=(Evidence("elements", round(times), "calls", place),),
        where=(at(line),),
        what_if=(),
        doubt=0.5,
        sureness=0.7,
        subject=f"calling one by one ({place})",
    )


def _batched(account: Account, line: Line, times: float) -> Change:
    parts = [
        replace(part, work=part.work & (rank.work.end_ns - rank.work.start_ns < SHORT_NS)) if len(part.work) else part
        for part, rank in zip(parts_of_lines(account, [line]), account.run.ranks, strict=True)
    ]
    return without_parts(parts, factor=1 / times, collectives=False)
