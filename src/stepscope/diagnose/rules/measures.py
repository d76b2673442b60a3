"""Numbers that several rules ask for."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.replay.hidden_copies import copies_to_device, without_waits
from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.records import once_per_record
from stepscope.stats.middle import lower_median
from stepscope.units import NS_PER_MS

Mask = npt.NDArray[np.bool_]


def host_ms(time_ns: float) -> float:
    """Return milliseconds as evidence shows them."""
    return round(time_ns / NS_PER_MS, 3)


def typical_host_ns(account: Account, part: str) -> float:
    """Return what the median rank's host spends on one part per step; 0 where the run cannot be replayed.

    Of two in the middle the lesser: what only half of the ranks do makes the others wait, and is theirs.
    """
    replay = account.replay
    if replay is None:
        return 0.0
    totals = [getattr(p.host, part).sum() + getattr(p.tail, part).sum() for p in replay.programs]
    return lower_median(totals) / len(replay.steps)


def host_part_ns(account: Account, part: str) -> float | None:
    """Return one part of a job on hosts alone, where removing it saves no more than itself; None on a device, where a
    part is what the device idles for and not what the host spends.
    """
    if account.step is None or any(rank.has_device for rank in account.run.ranks):
        return None
    return account.step.ns(part)


def items_per_step(account: Account) -> float:
    """Return how many device operations the mean rank launches per step."""
    replay = account.replay
    return float(np.mean([len(p) for p in replay.programs])) / len(replay.steps) if replay else 0.0


def device_ms(account: Account, chosen: Sequence[Mask]) -> float:
    """Return the device time of some work per step, mean over ranks; only work launched in recorded steps counts."""
    totals = []
    for rank, mask in zip(account.run.ranks, chosen, strict=True):
        mine = mask & (rank.work.step >= 0)
        totals.append((rank.work.end_ns - rank.work.start_ns)[mine].sum() / max(len(rank.steps), 1))
    return float(np.mean(totals)) / NS_PER_MS if totals else 0.0


def transfers_to_device(account: Account) -> list[Mask]:
    """Return per rank which work copies from the host to the device."""
    return [copies_to_device(rank) for rank in account.run.ranks]


@once_per_record
def other_waits(account: Account) -> list[int]:
    """Return how often each rank's host waited for the device, other than for copies to it."""
    if account.replay is None:
        return []
    return [_waits(program) for program in without_waits(account.replay)]


@once_per_record
def waits_for_copies(account: Account) -> list[int]:
    """Return how often each rank's host waited for copies to the device."""
    if account.replay is None:
        return []
    return [_waits(p) - other for p, other in zip(account.replay.programs, other_waits(account), strict=True)]


def _waits(program: Program) -> int:
    return int((program.released_by != NOTHING).sum())
