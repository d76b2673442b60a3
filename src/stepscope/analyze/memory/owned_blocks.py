"""Whose are blocks of memory: which line of the user's code, and which module, allocated them?

By the owners that the job recorded (or the frames in its trace); without those, by the Python frame around.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from stepscope.analyze.memory.sources import NOBODY, Holder, source_lines_at
from stepscope.analyze.owners.ownership import Ownership
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.trace.table import Int64s

OwnersOf = Callable[[], Ownership | None]
"""of one rank; asked for only where there is memory to own"""


def no_owners() -> None:
    """Return that nobody recorded owners."""


def line_names(rank: Rank, owned: Ownership | None, rows: Rows) -> list[str | None]:
    """Return the line of the user's code in which each memory event lies: `train.py:42 (step)`; None where unknown."""
    if owned is None:
        trace = rank.trace
        found = source_lines_at(rank, trace["tid"][rows], trace["ts_ns"][rows]).tolist()
        return [None if i == NOBODY else trace.strings[i] for i in found]
    names = [f"{f.file}:{f.line} ({f.function})" for f in owned.frames]
    found = owned.stacks.innermost_user[owned.of_rows(rows).stack].tolist()
    return [names[frame] if frame >= 0 else None for frame in found]


def module_names(owned: Ownership | None, rows: Rows) -> list[str | None]:
    """Return the module in which each memory event lies; None where that is unknown."""
    if owned is None:
        return [None] * len(rows)
    return [owned.modules[module] if module >= 0 else None for module in owned.of_rows(rows).module.tolist()]


def held_by(names: Sequence[str | None], size_bytes: Int64s, *, most: int) -> tuple[Holder, ...]:
    """Return what each name holds, the largest first; blocks of nobody are left out."""
    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for name, size in zip(names, size_bytes.tolist(), strict=True):
        if name:
            held[name] += size
            blocks[name] += 1
    return tuple(Holder(name, size, blocks[name]) for name, size in held.most_common(most))
