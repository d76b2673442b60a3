"""`too-many-small-collectives`: latency-bound communication: tiny buckets, per-parameter calls."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.replay.communication_changes import GOOD_MESSAGE_BYTES, larger_messages
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only, group_rows
from stepscope.diagnose.rules.measures import host_ms
from stepscope.stats.middle import median

_SMALL_BYTES = GOOD_MESSAGE_BYTES // 2
_MANY = 8
_MANY_UNSIZED = 64
"""calls per step where no size is known: a model has that many parameters, no set of buckets has"""
_TOGETHER = 8


def too_many_small_collectives(account: Account) -> list[Candidate]:
    """Return many small messages per step where most of them could travel together."""
    if account.replay is None or not gradient_groups_only(account):
        return []
    if not any((r.collectives.full_bytes > 0).any() for r in account.run.ranks):
        return _by_count(account)
    small, total, steps = 0, 0, 0
    for rank in account.run.ranks:
        size = rank.collectives.full_bytes[group_rows(rank)]
        small += int(((size >= 0) & (size < _SMALL_BYTES)).sum())
        total += len(size)
        steps += max(len(rank.steps), 1)
    if small < _MANY * steps or small < 0.5 * total:
        return []
    sizes = np.concatenate([r.collectives.full_bytes[group_rows(r)] for r in account.run.ranks])
    return [
        Candidate(
            id="too-many-small-collectives",
            title="Many small collectives instead of few large ones",
            cause="each call pays its latency on the host and on the network, whatever its size",
            remedy="Put gradients into buckets (DistributedDataParallel's bucket_cap_mb=25, or a flat buffer per 4 MB and more). "
            "The saving is of the same bytes in 4 MB messages.",
            change=larger_messages,
            evidence=(
                Evidence("collectives per step", round(total / steps, 1), "calls", "mean rank"),
                Evidence("median message", int(median(sizes)), "bytes"),
            ),
            doubt=0.35,
        )
    ]


def _by_count(account: Account) -> list[Candidate]:
    """Return many calls per step where the trace does not say how large they are."""
    ranks = account.run.ranks
    calls = sum(len(group_rows(r)) for r in ranks) / max(sum(len(r.steps) for r in ranks), 1)
    if calls < _MANY_UNSIZED:
        return []
    from stepscope.analyze.replay.fewer_calls import fewer_calls  # only for traces without sizes

    took = np.concatenate([(r.collectives.end_ns - r.collectives.start_ns)[group_rows(r)] for r in ranks])
    return [
        Candidate(
            id="too-many-small-collectives",
            title="Many collectives instead of few",
            cause="each call pays its latency on the host and on the network; how large they are was not recorded",
            remedy="Put gradients into buckets (DistributedDataParallel's bucket_cap_mb=25, or a flat buffer per 4 MB and more). "
            f"The saving is of {_TOGETHER} calls put together, which pay the latency of one.",
            change=lambda replay: fewer_calls(replay, _TOGETHER),
            evidence=(
                Evidence("collectives per step", round(calls, 1), "calls", "mean rank"),
                Evidence("median duration", host_ms(median(took)), "ms"),
            ),
            doubt=0.5,
            sureness=0.7,
        )
    ]
