"""What do single collectives allow the clocks to be? How far apart ends can lie, and that none precedes a start."""

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE
from stepscope.run.matching.match import SYMMETRIC, Matches
from stepscope.run.matching.segments import medians
from stepscope.trace.table import Int64s

Floats = npt.NDArray[np.float64]

_IN_ROUNDS = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
_PIPELINED_BYTES = 512 << 10
"""per rank: from here on a ring keeps all its ranks busy at once (one slot of NCCL's buffers)"""


def unequal_ends(matches: Matches, start: Int64s, end: Int64s) -> Floats:
    """Return for each member how far apart the ends of its collective can lie although the clocks agree; times are
    on the shared clock.

    A ring that is pipelined finishes on all ranks within one of its rounds: 1/(2(P-1)) of an all-reduce, 1/(P-1) of
    a gather, scatter or exchange. A message too small for that goes around rank by rank: in the second half of an
    all-reduce, in all of the others. A message may end on one rank a whole transfer before it ends on the other. The
    transfer is from the last arrival to the last end, the median over all alike: a short one may be luck.
    """
    if not len(matches):
        return np.empty(0)
    arrived = np.maximum.reduceat(start, matches.first[:-1])
    ended = np.maximum.reduceat(end, matches.first[:-1])
    members = np.diff(matches.first)
    rounds = np.where(np.isin(matches.op, _IN_ROUNDS), np.maximum(members - 1, 1), 1)
    rounds = np.where(matches.size_bytes >= _PIPELINED_BYTES * members, rounds, 1)
    rounds = np.where(matches.op == OP_CODE["all_reduce"], 2 * rounds, rounds)
    alike = np.unique(np.stack((matches.op, matches.size_bytes, matches.group)), axis=1, return_inverse=True)[1]
    transfer = _median_of_kind(np.maximum(ended - arrived, 0).astype(float), alike.reshape(-1))
    return (transfer / rounds)[matches.of_member]


def _median_of_kind(values: Floats, kind: Int64s) -> Floats:
    """Return for each value the median of its kind."""
    order = np.argsort(kind, kind="stable")
    first = np.searchsorted(kind[order], np.arange(kind.max() + 2))
    return medians(values[order], first)[kind]


def within_bounds(num_ranks: int, matches: Matches, start: Int64s, end: Int64s) -> Int64s:
    """Return what to add to each rank's offset where a symmetric collective would otherwise end before all had
    started; times are on the shared clock.
    """
    move = np.zeros(num_ranks, np.int64)
    if not len(matches):
        return move
    symmetric = np.isin(matches.op, SYMMETRIC)[matches.of_member]
    started = np.maximum.reduceat(start, matches.first[:-1])[matches.of_member]
    ended = np.minimum.reduceat(end, matches.first[:-1])[matches.of_member]
    for index in range(1, num_ranks):
        mine = matches.members_of(index)
        mine = mine[symmetric[mine]]
        if len(mine):
            too_late = int((start[mine] - ended[mine]).max())
            too_early = int((started[mine] - end[mine]).max())
            move[index] = -too_late if too_late > 0 > too_early else too_early if too_early > 0 > too_late else 0
    return move
