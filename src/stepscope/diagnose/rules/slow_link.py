"""`slow-link`: one group's collectives are far slower than those of its sibling groups."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import with_transfer_times
from stepscope.analyze.replay.replay import Replay
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.stats.distinct import among
from stepscope.stats.middle import median

_FAR_SLOWER = 2.0
_MIN_COUNT = 4


def slow_link(account: Account) -> list[Candidate]:
    """Return groups whose transfers take more than twice those of the groups that do the same elsewhere."""
    matches = account.shared.matches
    if account.replay is None:
        return []
    transfer = _transfers(account)
    found = []
    desc = np.array([g.desc for g in matches.groups])
    for role in sorted(set(desc.tolist())):
        groups = np.flatnonzero(desc == role)
        if len(groups) < 3 or not role:
            continue  # with two groups nobody can tell which one is unusual
        rates = {int(g): _ns_per_byte(account, transfer, int(g)) for g in groups}
        known = {g: rate for g, rate in rates.items() if rate is not None}
        usual = median(list(known.values())) if len(known) >= 3 else 0.0
        found += [_candidate(account, g, known[g] / usual) for g in known if usual and known[g] > _FAR_SLOWER * usual]
    return found


def _transfers(account: Account) -> np.ndarray:
    """Return the transfer of each match: the shortest among its members."""
    matches = account.shared.matches
    own = np.zeros(len(matches.row))
    for index, rank in enumerate(account.run.ranks):
        mine = matches.rank_index == index
        c, wait = rank.collectives, account.shared.wait_ns[index]
        own[mine] = (c.end_ns - c.start_ns - np.maximum(wait, 0))[matches.row[mine]]
    return np.minimum.reduceat(own, matches.first[:-1]) if len(matches) else own


def _ns_per_byte(account: Account, transfer: np.ndarray, group: int) -> float | None:
    matches = account.shared.matches
    mine = (matches.group == group) & (matches.size_bytes > 0) & ~among(matches.op, POINT_TO_POINT)
    if mine.sum() < _MIN_COUNT:
        return None
    return median(transfer[mine] / matches.size_bytes[mine])


def _candidate(account: Account, group: int, times: float) -> Candidate:
    named = account.shared.matches.groups[group]
    slow = {(named.name, named.ranks)}

    def fixed(replay: Replay) -> Replay:
        out = []
        for rank, wait in zip(replay.shared.run.ranks, replay.shared.wait_ns, strict=True):
            c = rank.collectives
            own = c.end_ns - c.start_ns - np.maximum(wait, 0)
            mine = np.array([(g.name, g.ranks) in slow for g in c.groups], bool)
            out.append(np.where(mine[c.group], np.rint(own / times), own).astype(np.int64) if len(c) else own)
        return with_transfer_times(replay, out)

    return Candidate(
        id="slow-link",
        title=f"Collectives of group {named.desc} {named.ranks} are {times:.1f} times as slow as its siblings'",
        cause="a link, port or device of these ranks is slower, or their traffic takes another path",
        remedy="Check the links of these ranks (nvidia-smi topo -m, ibstat, NCCL_DEBUG=INFO) and NCCL's choice of network. "
        "The saving is of this group as fast as its siblings.",
        change=fixed,
        ranks=named.ranks or (),
        evidence=(Evidence("transfer time per byte against sibling groups", round(times, 2), "times"),),
        sureness=0.7,
    )
