"""Which element of one sequence is which of another that is nearly the same?

    wanted  a b c X d e        ->  positions in known:  0 1 2 -1 3 4
    known   a b c d e

Equal beginnings and ends are taken off first, so that one stretch that was put in or left out costs nothing. What is
left goes through the greedy difference algorithm (Myers 1986), whose time grows with the number of differences, in
pieces of at most `_MAX_EDITS` differences each and with a bound on the whole: sequences that have little in common stay
unmatched instead of taking minutes.
"""

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.trace.table import Int64s

NOTHING = -1
_MAX_EDITS = 128
_MAX_TRIES = 1_000_000


@dataclass
class Tries:
    """How much more may be tried; shared by the alignments of one rank."""

    left: int = _MAX_TRIES


def aligned(wanted: Int64s, known: Int64s, tries: Tries | None = None) -> Int64s:
    """Return for each element of `wanted` its position in `known`, NOTHING where it has none.

    >>> aligned(np.array([5, 6, 9, 7]), np.array([5, 6, 7])).tolist()
    [0, 1, -1, 2]
    """
    out = np.full(len(wanted), NOTHING, np.int64)
    shorter = min(len(wanted), len(known))
    front = _same_at_front(wanted[:shorter], known[:shorter])
    back = _same_at_front(wanted[front:][::-1][: shorter - front], known[front:][::-1][: shorter - front])
    out[:front] = np.arange(front)
    out[len(wanted) - back :] = np.arange(len(known) - back, len(known))
    a, b = wanted[front : len(wanted) - back].tolist(), known[front : len(known) - back].tolist()
    for x, y, length in _matched(a, b, tries or Tries()):
        out[front + x : front + x + length] = np.arange(front + y, front + y + length)
    return out


def _same_at_front(a: Int64s, b: Int64s) -> int:
    differs = np.flatnonzero(a != b)
    return int(differs[0]) if len(differs) else len(a)


def _matched(a: list[int], b: list[int], tries: Tries) -> list[tuple[int, int, int]]:
    """Return the stretches `(start in a, start in b, length)` that both have in common, in order."""
    found: list[tuple[int, int, int]] = []
    x = y = 0
    while x < len(a) and y < len(b) and tries.left > 0:
        stretches, (x, y) = _piece(a, b, x, y, tries)
        found += stretches
    return found


def _piece(
    a: list[int], b: list[int], x0: int, y0: int, tries: Tries
) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    """Return the common stretches from `(x0, y0)` until both end or differ too often, and where that is."""
    size_a, size_b = len(a), len(b)
    reach = {1: x0}  # by diagonal x - y (relative to x0 - y0): the furthest x
    history: list[dict[int, int]] = []
    shift = x0 - y0
    for edits in range(_MAX_EDITS + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            x = reach[k + 1] if down else reach[k - 1] + 1
            y = x - k - shift
            begin = x
            while x < size_a and y < size_b and a[x] == b[y]:
                x, y = x + 1, y + 1
            tries.left -= 1 + x - begin
            reach[k] = x
            if x >= size_a and y >= size_b:
                return _traced(history, k, x, shift), (x, y)
    inside = [k for k, x in reach.items() if (k + _MAX_EDITS) % 2 == 0 and x <= size_a and x - k - shift <= size_b]
    best = max(inside, key=lambda k: 2 * reach[k] - k) if inside else 0
    x = min(reach.get(best, x0), size_a)
    end = (x, min(x - best - shift, size_b))
    return _traced(history, best, x, shift), end if end > (x0, y0) else (size_a, size_b)


def _traced(history: list[dict[int, int]], k: int, x: int, shift: int) -> list[tuple[int, int, int]]:
    """Return the common stretches on the way to `x` on diagonal `k`, in order."""
    found = []
    for edits in range(len(history) - 1, -1, -1):
        reach = history[edits]
        down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        before = k + 1 if down else k - 1
        began = reach[before] if down else reach[before] + 1
        if x > began:
            found.append((began, began - k - shift, x - began))
        x, k = reach[before], before
    return found[::-1]
