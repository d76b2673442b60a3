"""Did a clock run faster than the others inside the window, or was it set?"""

import numpy as np
import numpy.typing as npt

from stepscope.run.matching.match import Matches
from stepscope.run.matching.segments import medians
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.middle import median
from stepscope.stats.robust import mad_sigma, theil_sen
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_MS, NS_PER_S

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_MIN_SPAN_FOR_DRIFT_NS = 5 * NS_PER_S
_MIN_POINTS_FOR_DRIFT = 16
_POINTS_OF_DRIFT = 64
_FLOOR_NS = 1_000
_MIN_JUMP_NS = 5 * NS_PER_MS
_MIN_POINTS_FOR_JUMP = 6


def drifts(num_ranks: int, matches: Matches, when: Int64s, residual: Floats, usable: Bools) -> tuple[Floats, Int64s]:
    """Return each rank's drift in ppm against the first where a long window shows one (nan elsewhere), and what to
    add to the offsets that goes with it. `when` is each member's end since its rank's reference.
    """
    drift, shift = np.full(num_ranks, np.nan), np.zeros(num_ranks, np.int64)
    lines = []
    for index in range(num_ranks):
        mine = _usable_members(matches, index, usable)
        if len(mine) < _MIN_POINTS_FOR_DRIFT or np.ptp(when[mine]) < _MIN_SPAN_FOR_DRIFT_NS:
            return drift, shift
        x, y = when[mine].astype(float), residual[mine]
        lines.append((theil_sen(*_in_chunks(x, y)), x, y))
    base_slope, base_cut = lines[0][0]
    for index, ((slope, cut), x, y) in enumerate(lines):
        noise = mad_sigma(y - slope * x)
        if abs(slope - base_slope) * np.ptp(x) > 3 * noise + _FLOOR_NS:
            drift[index] = -(slope - base_slope) * 1e6
            shift[index] = -round(cut - base_cut)
    return drift, shift


def _usable_members(matches: Matches, index: int, usable: Bools) -> Int64s:
    mine = matches.members_of(index)
    return mine[usable[matches.of_member[mine]]]


def _in_chunks(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return medians of consecutive chunks: all pairs of a thousand points would take long on a thousand ranks."""
    order = np.argsort(x, kind="stable")
    cuts = distinct(np.linspace(0, len(x), _POINTS_OF_DRIFT + 1).astype(np.int64))
    return medians(x[order], cuts), medians(y[order], cuts)


def jumps(ranks: tuple[Rank, ...], matches: Matches, residual: Floats, usable: Bools) -> list[str]:
    """Return a line for each rank whose clock was set during the window: its ends split into two levels."""
    found = {}
    for index, rank in enumerate(ranks):
        mine = _usable_members(matches, index, usable)
        # By step: where a clock was set back, its times no longer tell the order.
        order = np.lexsort((matches.row[mine], matches.step[matches.of_member[mine]]))
        jump_ns = _level_change(residual[mine[order]])
        if jump_ns:
            found[rank.rank] = jump_ns
    if len(ranks) == 2 and found:  # two clocks: nobody can tell which of them was set
        apart_ms = 2 * max(map(abs, found.values())) / NS_PER_MS
        return [
            f"clocks of ranks {ranks[0].rank} and {ranks[1].rank} jump apart by {apart_ms:.1f} ms inside the window"
        ]
    return [f"clock of rank {rank} jumps by {ns / NS_PER_MS:.1f} ms inside the window" for rank, ns in found.items()]


def _level_change(values: Floats) -> float:
    """Return by how much a series changes at its largest step, 0 where that is no more than its noise."""
    if len(values) < _MIN_POINTS_FOR_JUMP:
        return 0.0
    steps = np.abs(np.diff(values))[1:-1]
    at = 2 + int(np.argmax(steps))
    if steps[at - 2] <= _MIN_JUMP_NS:
        return 0.0
    before, after = values[:at], values[at:]
    change = float(median(after) - median(before))
    noise = max(mad_sigma(before), mad_sigma(after), 1.0)
    return change if abs(change) > max(20 * noise, _MIN_JUMP_NS) else 0.0
