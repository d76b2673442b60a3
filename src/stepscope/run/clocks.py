"""How far apart are the ranks' clocks, and how sure is that?

A collective ends on all its ranks at nearly the same moment, whoever came late; so the differences of its ends,
over many collectives, are the differences of the clocks. Nothing is concluded from starts, because a rank that is
always late starts late. Starts give hard bounds instead: every rank of a symmetric collective starts before any of
them ends.

    shared time = local time + offset + drift x (local time - reference)
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepscope.run.collective_names import OP_CODE
from stepscope.run.match import SYMMETRIC, Matches
from stepscope.run.rank import Rank
from stepscope.stats import mad_sigma, theil_sen
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_MS, NS_PER_S

_IN_ROUNDS = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))

Floats = npt.NDArray[np.float64]

_SHORTEST_FOR_DRIFT_NS = 5 * NS_PER_S
_FEWEST_FOR_DRIFT = 16
_SMALLEST_JUMP_NS = 5 * NS_PER_MS
_FEWEST_FOR_JUMP = 6
_PIPELINED_BYTES = 512 << 10
"""per rank: from here on a ring keeps all its ranks busy at once (one slot of NCCL's buffers)"""
_FLOOR_NS = 1_000
"""time stamps of a device are not better than a microsecond across processes"""


@dataclass(frozen=True)
class Clocks:
    """What to add to each rank's times. `known[i]` is False for a rank that nothing ties to the first one."""

    offset_ns: Int64s
    uncertainty_ns: Floats
    """half-width that should hold the true offset; nan where unknown"""
    drift_ppm: Floats
    """nan where the window is too short to tell, or where no drift shows"""
    reference_ns: Int64s
    known: npt.NDArray[np.bool_]
    warnings: tuple[str, ...] = ()

    def shared(self, rank_index: npt.ArrayLike, local_ns: Int64s) -> Int64s:
        """Return local times of a rank (or of one rank each) on the shared clock."""
        i = np.asarray(rank_index)
        drift = np.nan_to_num(self.drift_ppm[i]) * 1e-6
        correction = np.rint(drift * (local_ns - self.reference_ns[i])).astype(np.int64)
        return local_ns + self.offset_ns[i] + correction


def align_clocks(ranks: tuple[Rank, ...], matches: Matches) -> Clocks:
    """Return the clocks of these ranks relative to the first one."""
    start, end = _member_times(ranks, matches)
    reference = np.array([int(r.steps.start_ns.min()) if len(r.steps) else _first_time(r) for r in ranks], np.int64)
    usable = _usable(matches)
    offset, hops, known = _tree_offsets(len(ranks), matches, end, usable)
    drift = np.full(len(ranks), np.nan)
    for _ in range(3):
        residual, sharp = _residuals(matches, end, offset, drift, reference, usable)
        offset = offset - _per_rank(np.median, residual, matches.rank_index, sharp, len(ranks)).astype(np.int64)
        offset -= offset[0]
    residual, sharp = _residuals(matches, end, offset, drift, reference, usable)
    drift, offset = _drifts(ranks, matches, end, residual, usable, offset, reference)
    residual, sharp = _residuals(matches, end, offset, drift, reference, usable)
    noise = 2 * _per_rank(mad_sigma, residual, matches.rank_index, sharp, len(ranks))
    clocks = Clocks(offset, noise, drift, reference, known)
    apart = _unequal_ends(matches, clocks.shared(matches.rank_index, start), clocks.shared(matches.rank_index, end))
    unequal = hops * _per_rank(np.median, apart, matches.rank_index, sharp, len(ranks))
    uncertainty = np.where(known, noise + unequal + _FLOOR_NS, np.nan)
    bounded = _within_bounds(clocks, matches, start, end)
    warnings = [*_unknown(ranks, known), *_jumps(ranks, matches, residual, usable)]
    return Clocks(bounded, uncertainty, drift, reference, known, tuple(warnings))


def _member_times(ranks: tuple[Rank, ...], matches: Matches) -> tuple[Int64s, Int64s]:
    """Return local start and end of every member."""
    start = np.empty(len(matches.row), np.int64)
    end = np.empty(len(matches.row), np.int64)
    for index, rank in enumerate(ranks):
        mine = matches.rank_index == index
        start[mine] = rank.collectives.start_ns[matches.row[mine]]
        end[mine] = rank.collectives.end_ns[matches.row[mine]]
    return start, end


def _first_time(rank: Rank) -> int:
    c = rank.collectives
    return int(c.start_ns.min()) if len(c) else 0


def _usable(matches: Matches) -> npt.NDArray[np.bool_]:
    """Return which members may speak about clocks: those of symmetric collectives, where they tie all ranks
    together; point-to-point messages and rooted collectives only where nothing better does.
    """
    symmetric = np.isin(matches.op, SYMMETRIC)[matches.of_member]
    tied = np.unique(matches.rank_index[symmetric])
    everything = np.unique(matches.rank_index)
    return symmetric if len(tied) == len(everything) else np.ones(len(matches.row), bool)


def _tree_offsets(
    num_ranks: int, matches: Matches, end: Int64s, usable: npt.NDArray[np.bool_]
) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_]]:
    """Return first offsets, walking from the first rank through shared collectives, how many collectives the
    walk took, and who was reached.

    Ranks that nothing ties to the first are walked from the first among them: their waits still make sense.
    """
    offset, hops = np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64)
    reached = np.zeros(num_ranks, bool)
    with_first: npt.NDArray[np.bool_] | None = None
    of = matches.of_member
    while not reached.all():
        fresh = np.zeros(len(matches.row), bool)
        if reached.any():
            # In every match, compare the members not reached yet with the median of those that are.
            there = reached[matches.rank_index]
            anchor, has_anchor = _median_by_match(matches, end + offset[matches.rank_index], usable & there)
            fresh = usable & ~there & has_anchor[of]
        if not fresh.any():
            if with_first is None and reached.any():
                with_first = reached.copy()
            reached[int(np.argmin(reached))] = True
            continue
        difference, walked = anchor[of] - end, hops.max() + 1
        for index in np.unique(matches.rank_index[fresh]):
            offset[index] = _middle(difference[fresh & (matches.rank_index == index)])
            reached[index], hops[index] = True, walked
    return offset, hops, reached if with_first is None else with_first


def _middle(values: Int64s) -> int:
    """Return the median of large numbers, exactly."""
    return int(values[0]) + round(float(np.median(values - values[0])))


def _unequal_ends(matches: Matches, start: Int64s, end: Int64s) -> Floats:
    """Return for each member how far apart the ends of its collective can lie although the clocks agree; times are
    on the shared clock.

    A ring that is pipelined finishes on all ranks within one of its rounds: 1/(2(P-1)) of an all-reduce, 1/(P-1) of
    a gather, scatter or exchange. A message too small for that goes around rank by rank: in the second half of an
    all-reduce, in all of the others. A message may end on one rank a whole transfer before it ends on the other. The
    transfer is from the last arrival to the last end, the median over all alike: a short one may be luck.
    """
    arrived = np.full(len(matches), np.iinfo(np.int64).min)
    ended = arrived.copy()
    np.maximum.at(arrived, matches.of_member, start)
    np.maximum.at(ended, matches.of_member, end)
    members = np.diff(matches.first)
    rounds = np.where(np.isin(matches.op, _IN_ROUNDS), np.maximum(members - 1, 1), 1)
    rounds = np.where(matches.size_bytes >= _PIPELINED_BYTES * members, rounds, 1)
    rounds = np.where(matches.op == OP_CODE["all_reduce"], 2 * rounds, rounds)
    alike = np.unique(np.stack((matches.op, matches.size_bytes, matches.group)), axis=1, return_inverse=True)[1]
    return (_medians(np.maximum(ended - arrived, 0), alike.reshape(-1)) / rounds)[matches.of_member]


def _medians(values: Int64s, kind: Int64s) -> Floats:
    """Return for each value the median of its kind."""
    out = np.empty(len(values))
    for k in np.unique(kind):
        out[kind == k] = np.median(values[kind == k])
    return out


def _median_by_match(
    matches: Matches, times: Int64s, chosen: npt.NDArray[np.bool_]
) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the median time of the chosen members of each match, and which matches have any.

    Whole nanoseconds: since 1970 they are more than a float holds.
    """
    out, known = np.zeros(len(matches), np.int64), np.zeros(len(matches), bool)
    member = np.flatnonzero(chosen)
    if not len(member):
        return out, known
    of = matches.of_member[member]
    order = np.lexsort((times[member], of))
    of, value = of[order], times[member][order]
    begin = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
    count = np.diff(np.append(begin, len(of)))
    low, high = value[begin + (count - 1) // 2], value[begin + count // 2]
    out[of[begin]], known[of[begin]] = low + (high - low) // 2, True
    return out, known


def _residuals(
    matches: Matches,
    end: Int64s,
    offset: Int64s,
    drift: Floats,
    reference: Int64s,
    usable: npt.NDArray[np.bool_],
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return how far each member's end lies from its match's median, and which members are sharp.

    Sharp are the members of the half of the matches whose ends agree best: small collectives.
    """
    i = matches.rank_index
    correction = np.nan_to_num(drift[i]) * 1e-6 * (end - reference[i])
    shared = end + offset[i] + np.rint(correction).astype(np.int64)
    middle, _ = _median_by_match(matches, shared, usable)
    residual = np.where(usable, shared - middle[matches.of_member], 0).astype(float)
    spread = np.zeros(len(matches))
    np.maximum.at(spread, matches.of_member, np.abs(residual))
    counted = np.zeros(len(matches), bool)
    counted[matches.of_member[usable]] = True
    limit = np.median(spread[counted]) if counted.any() else 0.0
    return residual, usable & (spread <= limit)[matches.of_member]


def _per_rank(
    statistic: Callable[[Floats], float],
    values: Floats,
    rank_index: npt.NDArray[np.int32],
    chosen: npt.NDArray[np.bool_],
    num: int,
) -> Floats:
    """Return `statistic` of each rank's chosen values, 0 where it has none."""
    out = np.zeros(num)
    member = np.flatnonzero(chosen)
    member = member[np.argsort(rank_index[member], kind="stable")]
    cuts = np.searchsorted(rank_index[member], np.arange(num + 1))
    for index, (begin, end) in enumerate(pairwise(cuts.tolist())):
        if end > begin:
            out[index] = statistic(values[member[begin:end]])
    return out


def _drifts(
    ranks: tuple[Rank, ...],
    matches: Matches,
    end: Int64s,
    residual: Floats,
    usable: npt.NDArray[np.bool_],
    offset: Int64s,
    reference: Int64s,
) -> tuple[Floats, Int64s]:
    """Return each rank's drift against the first where a long window shows one, and offsets that go with it."""
    drift = np.full(len(ranks), np.nan)
    lines = []
    for index in range(len(ranks)):
        mine = np.flatnonzero(usable & (matches.rank_index == index))
        when = end[mine] - reference[index]
        if len(mine) < _FEWEST_FOR_DRIFT or when.max() - when.min() < _SHORTEST_FOR_DRIFT_NS:
            return drift, offset
        lines.append((theil_sen(when.astype(float), residual[mine]), when, residual[mine]))
    base_slope, base_cut = lines[0][0]
    shifted = offset.copy()
    for index, ((slope, cut), when, values) in enumerate(lines):
        noise = mad_sigma(values - slope * when)
        if abs(slope - base_slope) * (when.max() - when.min()) > 3 * noise + _FLOOR_NS:
            drift[index] = -(slope - base_slope) * 1e6
            shifted[index] -= round(cut - base_cut)
    return drift, shifted


def _within_bounds(clocks: Clocks, matches: Matches, start: Int64s, end: Int64s) -> Int64s:
    """Return the offsets, moved where a symmetric collective would otherwise end before all had started."""
    i, of = matches.rank_index, matches.of_member
    symmetric = np.isin(matches.op, SYMMETRIC)[of]
    offset = clocks.offset_ns.copy()
    started = np.full(len(matches), np.iinfo(np.int64).min)
    ended = np.full(len(matches), np.iinfo(np.int64).max)
    shared_start, shared_end = clocks.shared(i, start), clocks.shared(i, end)
    np.maximum.at(started, of, shared_start)
    np.minimum.at(ended, of, shared_end)
    for index in range(1, len(offset)):
        mine = symmetric & (i == index)
        if mine.any():
            too_late = int((shared_start[mine] - ended[of[mine]]).max())
            too_early = int((started[of[mine]] - shared_end[mine]).max())
            offset[index] += -too_late if too_late > 0 > too_early else too_early if too_early > 0 > too_late else 0
    return offset


def _unknown(ranks: tuple[Rank, ...], known: npt.NDArray[np.bool_]) -> list[str]:
    lost = [str(r.rank) for r, k in zip(ranks, known, strict=True) if not k]
    return [f"clock of rank {', '.join(lost)} unknown: no collective ties it to rank {ranks[0].rank}"] if lost else []


def _jumps(ranks: tuple[Rank, ...], matches: Matches, residual: Floats, usable: npt.NDArray[np.bool_]) -> list[str]:
    """Return a line for each rank whose clock was set during the window: its ends split into two levels."""
    jumps = {}
    for index, rank in enumerate(ranks):
        mine = np.flatnonzero(usable & (matches.rank_index == index))
        # By step: where a clock was set back, its times no longer tell the order.
        order = np.lexsort((matches.row[mine], matches.step[matches.of_member[mine]]))
        jump_ns = _level_change(residual[mine[order]])
        if jump_ns:
            jumps[rank.rank] = jump_ns
    if len(ranks) == 2 and jumps:  # two clocks: nobody can tell which of them was set
        apart_ms = 2 * max(map(abs, jumps.values())) / NS_PER_MS
        return [
            f"clocks of ranks {ranks[0].rank} and {ranks[1].rank} jump apart by {apart_ms:.1f} ms inside the window"
        ]
    return [f"clock of rank {rank} jumps by {ns / NS_PER_MS:.1f} ms inside the window" for rank, ns in jumps.items()]


def _level_change(values: Floats) -> float:
    """Return by how much a series changes at its largest step, 0 where that is no more than its noise."""
    if len(values) < _FEWEST_FOR_JUMP:
        return 0.0
    at = 2 + int(np.argmax(np.abs(np.diff(values))[1:-1]))
    before, after = values[:at], values[at:]
    change = float(np.median(after) - np.median(before))
    noise = max(mad_sigma(before), mad_sigma(after), 1.0)
    return change if abs(change) > max(20 * noise, _SMALLEST_JUMP_NS) else 0.0
