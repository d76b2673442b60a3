"""How far apart are the ranks' clocks, and how sure is that?

A collective ends on all its ranks at nearly the same moment, whoever came late; so the differences of its ends,
over many collectives, are the differences of the clocks. Nothing is concluded from starts, because a rank that is
always late starts late. Starts give hard bounds instead: every rank of a symmetric collective starts before any of
them ends.

    shared time = local time + offset + drift x (local time - reference)
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.clocks.bounds import unequal_ends, within_bounds
from stepscope.run.clocks.changes import drifts, jumps
from stepscope.run.matching.match import SYMMETRIC, Matches
from stepscope.run.matching.segments import mad_sigmas, median_times, medians
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.middle import median
from stepscope.trace.table import Int64s

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FLOOR_NS = 1_000
"""time stamps of a device are not better than a microsecond across processes"""
_ROUNDS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Clocks(ArrayRecord):
    """What to add to each rank's times. `known[i]` is False for a rank that nothing ties to the first one."""

    offset_ns: Int64s
    uncertainty_ns: Floats
    """half-width that should hold the true offset to the rank that `tied_to` names"""
    drift_ppm: Floats
    """nan where the window is too short to tell, or where no drift shows"""
    reference_ns: Int64s
    known: Bools
    tied_to: Int64s
    """index of the first among the ranks that collectives tie together; their offsets hold among themselves"""
    warnings: tuple[str, ...] = ()

    def shared(self, rank_index: npt.ArrayLike, local_ns: Int64s) -> Int64s:
        """Return local times of a rank (or of one rank each) on the shared clock."""
        i = np.asarray(rank_index)
        shifted = local_ns + self.offset_ns[i]
        if np.isnan(self.drift_ppm).all():
            return shifted
        drift = np.nan_to_num(self.drift_ppm)[i] * 1e-6
        return shifted + np.rint(drift * (local_ns - self.reference_ns[i])).astype(np.int64)

    def of(self, ranks: Int64s) -> "Clocks":
        """Return the clocks of some of the ranks, the first one among them; their offsets are to it as before."""
        roots = self.tied_to[ranks]
        first = {root: place for place, root in reversed(list(enumerate(roots.tolist())))}
        return Clocks(
            offset_ns=self.offset_ns[ranks],
            uncertainty_ns=self.uncertainty_ns[ranks],
            drift_ppm=self.drift_ppm[ranks],
            reference_ns=self.reference_ns[ranks],
            known=self.known[ranks],
            tied_to=np.array([first[root] for root in roots.tolist()], np.int64),
            warnings=self.warnings,
        )


def align_clocks(ranks: tuple[Rank, ...], matches: Matches) -> Clocks:
    """Return the clocks of these ranks relative to the first one."""
    start, end = _member_times(ranks, matches)
    usable = _usable(matches)
    clocks, hops = _first_estimate(ranks, matches, end, usable)
    for _ in range(_ROUNDS):
        residual, sharp = _residuals(clocks, matches, end, usable)
        offset = clocks.offset_ns - medians(*_by_rank(residual, matches, sharp, len(ranks))).astype(np.int64)
        clocks = replace(clocks, offset_ns=offset - offset[0])
    clocks = _with_one_reference(clocks)
    since = end - clocks.reference_ns[matches.rank_index]
    for _ in range(_ROUNDS):  # while clocks run apart, the median of their ends is bent: the first slope is rough
        residual, _ = _residuals(clocks, matches, end, usable)
        drift, shift = drifts(len(ranks), matches, since, residual, usable)
        if np.isnan(drift).all():
            break
        clocks = replace(clocks, drift_ppm=_sum(clocks.drift_ppm, drift), offset_ns=clocks.offset_ns + shift)
    residual, sharp = _residuals(clocks, matches, end, usable)
    noise = 2 * mad_sigmas(*_by_rank(residual, matches, sharp, len(ranks)))
    shared_start, shared_end = (clocks.shared(matches.rank_index, times) for times in (start, end))
    apart = unequal_ends(matches, shared_start, shared_end)
    unequal = hops * medians(*_by_rank(apart, matches, sharp, len(ranks)))
    return replace(
        clocks,
        offset_ns=clocks.offset_ns + within_bounds(len(ranks), matches, shared_start, shared_end),
        uncertainty_ns=noise + unequal + FLOOR_NS,
        warnings=tuple(jumps(ranks, matches, residual, usable)),
    )


def _member_times(ranks: tuple[Rank, ...], matches: Matches) -> tuple[Int64s, Int64s]:
    """Return local start and end of every member."""
    start = np.empty(len(matches.row), np.int64)
    end = np.empty(len(matches.row), np.int64)
    for index, rank in enumerate(ranks):
        mine = matches.members_of(index)
        start[mine] = rank.collectives.start_ns[matches.row[mine]]
        end[mine] = rank.collectives.end_ns[matches.row[mine]]
    return start, end


def _first_time(rank: Rank) -> int:
    c = rank.collectives
    return int(rank.steps.start_ns.min()) if len(rank.steps) else int(c.start_ns.min()) if len(c) else 0


def _usable(matches: Matches) -> Bools:
    """Return which matches may speak about clocks: symmetric collectives, where they tie all ranks together;
    point-to-point messages and rooted collectives only where nothing better does.
    """
    symmetric = np.isin(matches.op, SYMMETRIC)
    tied = distinct(matches.rank_index[symmetric[matches.of_member]])
    everything = distinct(matches.rank_index)
    return symmetric if len(tied) == len(everything) else np.ones(len(matches), bool)


def _first_estimate(ranks: tuple[Rank, ...], matches: Matches, end: Int64s, usable: Bools) -> tuple[Clocks, Int64s]:
    """Return first offsets, walking from the first rank through shared collectives, and how many the walk took.

    Ranks that nothing ties to the first are walked from the first among them: their waits still make sense.
    """
    num = len(ranks)
    offset, hops, tied_to = np.zeros(num, np.int64), np.zeros(num, np.int64), np.full(num, -1, np.int64)
    while (tied_to < 0).any():
        root = int(np.argmax(tied_to < 0))
        tied_to[root] = root
        fresh = [root]
        while len(fresh):
            fresh = _walk(matches, end, usable, offset, tied_to)
            tied_to[fresh] = root
            hops[fresh] = hops[tied_to == root].max() + 1
    reference = np.array([_first_time(rank) for rank in ranks], np.int64)
    unknown = np.full(num, np.nan)
    return Clocks(offset, unknown, unknown, reference, tied_to == 0, tied_to), hops


def _walk(matches: Matches, end: Int64s, usable: Bools, offset: Int64s, tied_to: Int64s) -> list[int]:
    """Set the offsets of the ranks that share a collective with one already reached; return those ranks.

    In every match the members not reached yet are compared with the median of those that are.
    """
    if not len(matches):
        return []
    there = (tied_to >= 0)[matches.rank_index]
    reached = np.add.reduceat(there, matches.first[:-1], dtype=np.int64)
    open_matches = usable & (reached > 0) & (reached < np.diff(matches.first))
    member = np.flatnonzero(open_matches[matches.of_member])
    anchors, others = member[there[member]], member[~there[member]]
    times = end[anchors] + offset[matches.rank_index[anchors]]
    anchor = median_times(times, np.concatenate(([0], np.cumsum(np.where(open_matches, reached, 0)))))
    difference = anchor[matches.of_member[others]] - end[others]
    rank, order = matches.rank_index[others], np.argsort(matches.rank_index[others], kind="stable")
    fresh, begin = np.unique(rank[order], return_index=True)
    offset[fresh] = median_times(difference[order], np.append(begin, len(order)))
    return fresh.tolist()


def _residuals(clocks: Clocks, matches: Matches, end: Int64s, usable: Bools) -> tuple[Floats, Bools]:
    """Return how far each member's end lies from its match's median, and which matches are sharp.

    Sharp is the half of the usable matches whose ends agree best: small collectives.
    """
    if not len(matches):
        return np.empty(0), usable
    shared = clocks.shared(matches.rank_index, end)
    residual = (shared - median_times(shared, matches.first)[matches.of_member]).astype(float)
    spread = np.maximum.reduceat(np.abs(residual), matches.first[:-1])
    return residual, usable & (spread <= (median(spread[usable]) if usable.any() else 0.0))


def _with_one_reference(clocks: Clocks) -> Clocks:
    """Return the clocks with the reference of all ranks that are tied together at one moment."""
    of = clocks.tied_to
    return replace(clocks, reference_ns=clocks.reference_ns[of] + clocks.offset_ns[of] - clocks.offset_ns)


def _sum(a: Floats, b: Floats) -> Floats:
    """Return the sum of drifts, where nan is none."""
    return np.where(np.isnan(a) & np.isnan(b), np.nan, np.nan_to_num(a) + np.nan_to_num(b))


def _by_rank(values: Floats, matches: Matches, chosen: Bools, num_ranks: int) -> tuple[Floats, Int64s]:
    """Return the values of the members of chosen matches as one segment per rank."""
    member = matches.by_rank[0]
    member = member[chosen[matches.of_member[member]]]
    return values[member], np.searchsorted(matches.rank_index[member], np.arange(num_ranks + 1))
