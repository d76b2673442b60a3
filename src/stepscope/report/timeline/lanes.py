"""In which lanes do the slices of one track lie, so that in each of them every slice is inside another or apart?

Viewers draw a track as a stack: a slice that begins inside another must end inside it too. Kernels of one stream that
overlap at their edges, or ranges of one thread that cross, break that, and the viewer drops or cuts them.

    one track                      two lanes
    A =======                      A =======   C ====
        B =======       ->         B     =======
             C ====
"""

from stepscope.dataclass import dataclass
from stepscope.trace.table import Int64s

MAX_LANES = 64
"""what overlaps more than so many others at once is left out and counted"""

Tokens = list[int]
"""`i` where slice i begins and `~i` where it ends, in the order of one lane"""


@dataclass(frozen=True)
class Lanes:
    """The lanes of one track."""

    tokens: tuple[Tokens, ...]
    left_out: int
    """slices that found no lane"""


def lanes(start: Int64s, end: Int64s) -> Lanes:
    """Return the lanes of slices that are sorted by start, longest first where starts are equal.

    >>> import numpy as np
    >>> lanes(np.array([0, 4, 9]), np.array([7, 11, 13])).tokens
    ([0, -1, 2, -3], [1, -2])
    """
    ends = end.tolist()
    tokens: list[Tokens] = []
    open_in: list[list[int]] = []
    left_out = 0
    for i, (begins, finishes) in enumerate(zip(start.tolist(), ends, strict=True)):
        for lane, is_open in zip(tokens, open_in, strict=True):
            while is_open and ends[is_open[-1]] <= begins:
                lane.append(~is_open.pop())
            if not is_open or ends[is_open[-1]] >= finishes:
                break
        else:
            if len(tokens) == MAX_LANES:
                left_out += 1
                continue
            lane, is_open = [], []
            tokens.append(lane)
            open_in.append(is_open)
        lane.append(i)
        is_open.append(i)
    for lane, is_open in zip(tokens, open_in, strict=True):
        lane.extend(~i for i in reversed(is_open))
    return Lanes(tuple(tokens), left_out)
