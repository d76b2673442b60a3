"""`launch-overhead` by line: one small module called over and over in a Python loop, as recurrent cells are."""

from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, parts_of_lines, ranks_with, without_parts

_MIN_TIMES = 16
"""calls of the same module from the same line in one forward pass"""


def repeated_module(account: Account) -> list[Candidate]:
    """Return lines that call one module many times in one forward pass, each call with a backward of its own, or the
    same for each element of a comprehension.
    """
    if not any(rank.has_device for rank in account.run.ranks) or account.strategy.has("pp"):
        return []
    found = [_candidate(account, line) for line in lines_on_all(account, _is_repeated)]
    if any(known is not None for known in account.line_work):
        from stepscope.diagnose.rules.comprehensions import comprehensions  # needs lines, which few traces have

        found += comprehensions(account)
    return found


def _is_repeated(rank: RankLines, work: LineWork) -> bool:
    return _times(rank, work) >= _MIN_TIMES


def _times(rank: RankLines, work: LineWork) -> float:
    """Return how often per step a line calls its only module; 0 where it has several or also does other things."""
    if len(work.modules) != 1 or not work.has_backward or work.optimizes:
        return 0.0
    if not (work.last_ns <= rank.backward_ns).all() or _backward_between(rank, work):
        return 0.0
    owned = rank.owned
    calls, by = owned.calls, owned.by_call
    module = owned.modules.index(next(iter(work.modules)))
    mine = np.isin(by.stack, work.stacks) & ~by.backward & (by.module == module)
    mine &= owned.rank.steps.of(calls.start_ns) >= 0
    _, count = np.unique(calls.name[mine], return_counts=True)
    often = count[count >= _MIN_TIMES * max(len(owned.rank.steps), 1)]
    if 2 * len(often) <= len(count):
        return 0.0
    return float(often.min()) / max(len(owned.rank.steps), 1)


def _backward_between(rank: RankLines, work: LineWork) -> bool:
    """Return whether backward ran between two calls of the line: micro-batches, not a loop over time."""
    owned = rank.owned
    by, start = owned.by_call, owned.calls.start_ns
    step = owned.rank.steps.of(start)
    for s, (first, last) in enumerate(zip(work.first_ns.tolist(), work.last_ns.tolist(), strict=True)):
        if bool((by.backward & (step == s) & (start > first) & (start < last)).any()):
            return True
    return False


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    known = ranks_with(account, line)
    times = max(_times(one, one.lines[line]) for one in known)
    module = next(iter(known[0].lines[line].modules))
    parts = [
        replace(part, work=part.work & ~view.costs.is_matmul) if len(part.work) else part
        for part, view in zip(parts_of_lines(account, [line]), account.ranks, strict=True)
    ]
    return Candidate(
        id="launch-overhead",
        title=f"{place} calls {module} {times:.0f} times per step",
        cause=f"{place} runs {module} step by step in a Python loop: many small launches, forward and backward, where "
        "fused forms take the whole sequence",
        remedy="Give the whole sequence to one call where there is one (nn.LSTM for nn.LSTMCell, a scan, a batched "
        "product), or capture the loop as a graph. The saving is of this line's matrix products alone: its other "
        "kernels fused into them, its host time gone.",
        change=without_parts(parts),
        evidence=(Evidence("calls of the same module per step", round(times), "calls", place),),
        where=(at(line, module),),
        what_if=(),
        doubt=0.3,
    )
