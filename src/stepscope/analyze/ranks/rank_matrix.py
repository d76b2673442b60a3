"""Which rank waits for which, and which sends how much to which, per step?

Waiting is measured: from a rank's own arrival at a collective to that of the last one. Of what is sent, messages from
rank to rank are known; a collective's bytes are counted as a ring sends them, each rank to the next of its group,
because no trace says which way they took.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ranks.traffic import num_steps
from stepscope.contract.collectives import OPS, bus_factor
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.aligned import AlignedRun
from stepscope.run.collectives.groups import Group
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct, distinct_rows

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class RankMatrix(ArrayRecord):
    """Rows are the rank that waits or sends, columns the rank it waits for or sends to; per step."""

    ranks: tuple[int, ...]
    waited_ns: Floats
    message_bytes: Floats
    """point-to-point messages, as recorded"""
    ring_bytes: Floats
    """collectives, as a ring would send them"""


def rank_matrix(shared: AlignedRun) -> RankMatrix | None:
    """Return who waits for whom and who sends to whom, None where ranks neither matched nor sent anything."""
    ranks = shared.run.ranks
    if len(ranks) < 2:
        return None
    sent = [_sent(rank, ranks) for rank in ranks]
    found = RankMatrix(
        ranks=tuple(rank.rank for rank in ranks),
        waited_ns=_waited(shared),
        message_bytes=np.array([messages for messages, _ in sent]),
        ring_bytes=np.array([ring for _, ring in sent]),
    )
    some = found.waited_ns.any() or found.message_bytes.any() or found.ring_bytes.any()
    return found if some else None


def _waited(shared: AlignedRun) -> Floats:
    num, matches = len(shared.run.ranks), shared.matches
    out = np.zeros((num, num))
    if not len(matches):
        return out
    last = shared.last_arrivals
    blamed = last.waited_ns > 0  # where the last two came within the clocks' doubt nobody is to blame
    of = matches.of_member
    waited = np.maximum(shared.last_arrival_ns()[of] - shared.arrival_ns, 0)
    keep = blamed[of] & (matches.rank_index != last.rank_index[of])
    np.add.at(out, (matches.rank_index[keep], last.rank_index[of[keep]]), waited[keep])
    return out / np.array([num_steps(rank) for rank in shared.run.ranks])[:, None]


def _sent(rank: Rank, ranks: tuple[Rank, ...]) -> tuple[Floats, Floats]:
    """Return the bytes per step that one rank sends to each other, by message and around rings."""
    index = {one.rank: i for i, one in enumerate(ranks)}
    messages, ring = np.zeros(len(ranks)), np.zeros(len(ranks))
    c, steps = rank.collectives, num_steps(rank)
    sends = c.messages.is_send & (c.messages.size_bytes > 0)
    for peer in distinct(c.messages.peer[sends]).tolist():
        if peer in index:
            messages[index[peer]] = float(c.messages.size_bytes[sends & (c.messages.peer == peer)].sum())
    codes = np.stack((c.op, c.group), axis=1) if len(c) else np.empty((0, 2), int)
    for op, group in distinct_rows(codes).tolist():
        following = _next_in_group(rank.rank, c.groups[group], index)
        if op in POINT_TO_POINT or following is None:
            continue
        mine = (c.op == op) & (c.group == group) & (c.full_bytes > 0)
        ring[following] += float(c.full_bytes[mine].sum()) * bus_factor(OPS[op], c.groups[group].size or len(ranks))
    return messages / steps, ring / steps


def _next_in_group(rank: int, group: Group, index: dict[int, int]) -> int | None:
    """Return the place of the rank after this one in its group; None where that is not known or was not recorded."""
    members = list(group.ranks) if group.ranks else list(index) if group.size == len(index) else []
    if rank not in members or len(members) < 2:
        return None
    return index.get(members[(members.index(rank) + 1) % len(members)])
