"""Who launched a kernel: which operator with which shapes, in which module, at which line, on which stream, how long
before it began?
"""

from typing import NamedTuple

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.stacks import NOBODY
from stepscope.report.html.frames import user_line
from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Int64s

MAX_SHAPES_LENGTH = 120
UNKNOWN = -1


class Launch(NamedTuple):
    """What is known of a kernel's launch besides its time; None is unknown."""

    operator: str | None
    shapes: str | None
    module: str | None
    line: str | None
    stream: int | None


def launches(account: Account, index: int, work: Int64s) -> tuple[list[Launch | None], Int64s]:
    """Return the launch of each of these rows of a rank's work (-1: none), and from the call to the start in ns.

    The delay is UNKNOWN where the call was not recorded.
    """
    rank = account.run.ranks[index]
    known = work >= 0
    delay = np.full(len(work), UNKNOWN, np.int64)
    if not known.any():
        return [None] * len(work), delay
    table, trace = rank.work, rank.trace
    rows = work[known]
    call = table.launch_row[rows]
    delay[known] = np.where(call >= 0, np.maximum(table.start_ns[rows] - trace["ts_ns"][call], 0), UNKNOWN)
    op = table.op_row[rows]
    shapes = trace.arg("input_dims").at(np.maximum(op, 0), missing=NO_STRING)
    modules, lines = _owners(account, index, rows)
    found = [
        Launch(
            trace.text(int(trace["name"][o])) if o >= 0 else None,
            _short(trace.text(int(s))) if o >= 0 and s != NO_STRING else None,
            module,
            line,
            stream if stream >= 0 else None,
        )
        for o, s, module, line, stream in zip(
            op.tolist(), shapes.tolist(), modules, lines, table.stream[rows].tolist(), strict=True
        )
    ]
    each = iter(found)
    return [next(each) if there else None for there in known.tolist()], delay


def _owners(account: Account, index: int, rows: Int64s) -> tuple[list[str | None], list[str | None]]:
    """Return module and line of rows of a rank's work."""
    owned = account.ownership[index]
    if owned is None:
        return [None] * len(rows), [None] * len(rows)
    mine = owned.by_work.at(rows)
    lines = {s: user_line(owned, s) for s in np.unique(mine.stack).tolist() if s != NOBODY}
    modules = [None if m == NOBODY else owned.modules[m] for m in mine.module.tolist()]
    return modules, [lines.get(s) for s in mine.stack.tolist()]


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_SHAPES_LENGTH:
        return text or None
    return text[: MAX_SHAPES_LENGTH - 1] + "…"
