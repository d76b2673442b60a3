"""Places in the code of the training loop, and the roles of what updates the parameters there.

Standard library only: the launcher reads `--step-of` without torch.
"""

import dis
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_OURS = str(Path(__file__).parents[1])

# where each frame of the training thread is, outermost first: its code and the offset of its last instruction
Place = tuple[tuple[CodeType, int], ...]


def current_place() -> Place:
    """Return where the training loop is now, without frames of the recorder."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OURS):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(reversed(found))


def is_in_inner_loop(inner: Place, outer: Place) -> bool:
    """Return whether `inner` is inside a loop of the code that does not contain `outer`, where the two part ways."""
    for (code, at), (other_code, other_at) in zip(inner, outer, strict=False):
        if code is not other_code:
            return False
        if at != other_at:
            return any(first <= at <= last and not first <= other_at <= last for first, last in _loops_of(code))
    return False


@cache
def _loops_of(code: CodeType) -> tuple[tuple[int, int], ...]:
    jumps = (i for i in dis.get_instructions(code) if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs)
    return tuple((jump.argval, jump.offset) for jump in jumps if jump.argval < jump.offset)


class Role:
    """One place in the code that updates parameters, or a backward after which they are updated by hand."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.trains = 0  # id of the optimizer's first parameter
        self.optimizer: Any = lambda: None
