"""The run without what lines or modules did: the change that stands for deleting or moving a line of the user's.

Which lines a rule may accuse is the rule's own matter; here is what goes with them.
"""

from collections.abc import Callable, Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owner_lines import LineWork, RankLines
from stepscope.analyze.replay.changes import Change
from stepscope.analyze.replay.removal import NO_PART, Choose, Part, part_for, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.stacks import Line
from stepscope.diagnose.finding import Where


def without_parts(parts: Sequence[Part], *, factor: float = 0.0, collectives: bool = True) -> Change:
    """Return the change that takes parts out of all ranks."""

    def changed(replay: Replay) -> Replay:
        return taken_out(replay, parts, factor=factor, collectives=collectives)

    return changed


def without_lines(account: Account, lines: Sequence[Line], *, device: bool = True) -> Change:
    """Return the change that deletes lines on all ranks, with everything they called."""
    return without_parts(parts_of_lines(account, lines, device=device))


def parts_of_lines(account: Account, lines: Sequence[Line], *, device: bool = True) -> list[Part]:
    """Return what every rank did in some lines, with everything they called."""

    def of_lines(known: RankLines) -> Choose:
        holds = np.zeros(len(known.owned.stacks) + 1, bool)
        for line in lines:
            if line in known.lines:
                holds |= known.holding(line)
        return lambda _, things: holds[things.stack]

    return [
        NO_PART if known is None else part_for(known.owned, of_lines(known), device=device)
        for known in account.line_work
    ]


def host_only(part: Part) -> Part:
    """Return the same part with its host time alone."""
    return Part(part.host, part.python, np.zeros_like(part.work), np.zeros_like(part.collectives), part.calls[:0])


def lines_on_all(account: Account, wanted: Callable[[RankLines, LineWork], bool]) -> list[Line]:
    """Return the outermost lines that a condition holds of, on every rank that has the line and most ranks have it."""
    known = [one for one in account.line_work if one is not None]
    found: dict[Line, int] = {}
    for one in known:
        chosen = {line: work for line, work in one.lines.items() if work.top_calls and wanted(one, work)}
        for line in one.outermost(chosen):
            found[line] = found.get(line, 0) + 1
    return [line for line, ranks in found.items() if 2 * ranks > len(known)]


def ranks_with(account: Account, line: Line) -> list[RankLines]:
    """Return what is known of the ranks whose steps have a line."""
    return [known for known in account.line_work if known is not None and line in known.lines]


def at(line: Line, module: str | None = None, share: float = 1.0) -> Where:
    """Return a line as the place of a finding."""
    return Where(*line, module=module, share=share)
