"""`redundant-communication`: gradients synchronised in every micro-batch of an accumulated step."""

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import without_work
from stepscope.analyze.replay.communication_changes import GRADIENT_OPS, without_collectives
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only, group_rows
from stepscope.records import once_per_record
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind

_BUCKETS = ("reducer::", "FSDP::post_backward_reduce")
"""ranges and operators in which a wrapper fills its buckets, sends them and takes them apart again"""


def redundant_communication(account: Account) -> list[Candidate]:
    """Return the collectives of a step that the same step repeats later."""
    if account.replay is None or not gradient_groups_only(account):
        return []
    found = [_repeated(rank) for rank in account.run.ranks]
    times = min((n for _, n in found), default=1)
    if times < 2:
        return []
    dropped = [mask for mask, _ in found]
    bucket_work = [_bucket_work(rank, mask) for rank, mask in zip(account.run.ranks, dropped, strict=True)]
    size = sum(int(r.collectives.full_bytes[m].sum()) for r, m in zip(account.run.ranks, dropped, strict=True))
    steps = sum(max(len(r.steps), 1) for r in account.run.ranks)
    return [
        Candidate(
            id="redundant-communication",
            title=f"Gradients are synchronised {times} times per step",
            cause="each micro-batch of an accumulated step synchronises the same gradients",
            remedy="Run all but the last micro-batch under model.no_sync() (DDP) or with model.set_requires_gradient_sync(False) (FSDP2). "
            "The saving is of one synchronisation per step.",
            change=lambda replay: without_work(without_collectives(replay, dropped), bucket_work),
            evidence=(
                Evidence("synchronisations of the same gradients per step", times, "times"),
                Evidence("bytes sent needlessly per step", round(size / steps), "bytes", "mean rank"),
            ),
            doubt=0.3,
        )
    ]


def needed_share(account: Account) -> float:
    """Return the share of the collectives' bytes that is sent for the first time in its step."""
    if account.replay is None or not gradient_groups_only(account):
        return 1.0
    found = [(rank.collectives.full_bytes, *_repeated(rank)) for rank in account.run.ranks]
    sent = sum(int(np.maximum(size, 0).sum()) for size, _, _ in found)
    again = sum(int(np.maximum(size[mask], 0).sum()) for size, mask, _ in found)
    return 1 - again / sent if sent and min((n for _, _, n in found), default=1) > 1 else 1.0


@once_per_record
def _repeated(rank: Rank) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which gradient collectives a later one of the same step repeats, and how often a step repeats them."""
    c = rank.collectives
    mask = np.zeros(len(c), bool)
    rows = group_rows(rank)
    rows = rows[among(c.op[rows], GRADIENT_OPS)]
    alike = list(zip(*(column[rows].tolist() for column in (c.op, c.group, c.full_bytes)), strict=True))
    of_step: defaultdict[int, list[int]] = defaultdict(list)
    for at, step in enumerate(c.step[rows].tolist()):
        of_step[step].append(at)
    times = []
    for mine in of_step.values():
        period = _period([alike[at] for at in mine])
        times.append(len(mine) // period)
        mask[rows[mine[: len(mine) - period]]] = times[-1] > 1
    return mask, min(times, default=1)


def _bucket_work(rank: Rank, dropped: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the device work that moves gradients in and out of buckets for the dropped collectives.

    The reducer of DistributedDataParallel marks it; in each step it belongs to the last synchronisation once the
    first collective of that one has been prepared, before that to a dropped one.
    """
    work, c = rank.work, rank.collectives
    marks = rank.rows_named(lambda s: any(mark in s for mark in _BUCKETS), EventKind.HOST_OP, EventKind.ANNOTATION)
    launched = np.flatnonzero((work.launch_row >= 0) & (work.step >= 0))
    out = np.zeros(len(work), bool)
    if not len(marks) or not dropped.any():
        return out
    inside = enclosing(rank.trace, marks, work.launch_row[launched]) >= 0
    last_dropped = np.full(len(rank.steps), np.iinfo(np.int64).min)
    np.maximum.at(last_dropped, c.step[dropped], c.issue_ns[dropped])
    early = rank.trace["ts_ns"][work.launch_row[launched]] <= last_dropped[work.step[launched]]
    out[launched] = inside & early
    return out


def _period(sequence: list[tuple[int, int, int]]) -> int:
    """Return the shortest length of which the sequence is a whole number of repeats.

    One size over and over is no repeat of a step's gradients but equal buckets: a period has two sizes at least.
    """
    n = len(sequence)
    for length in range(2, n // 2 + 1):
        if n % length == 0 and sequence == sequence[:length] * (n // length) and len(set(sequence[:length])) > 1:
            return length
    return max(n, 1)
