"""`no-overlap`: gradient communication that could run beside the backward pass and does not."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.stacks import Mask
from stepscope.analyze.replay.communication_changes import GRADIENT_OPS
from stepscope.analyze.replay.program import NOTHING
from stepscope.analyze.replay.replay import Replay
from stepscope.contract.regions import Region
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only
from stepscope.diagnose.rules.measures import host_ms
from stepscope.diagnose.rules.sent_again import rows_sent_again
from stepscope.stats.distinct import among, distinct

_LATE = 0.85
"""of the backward pass done when the mean gradient byte is sent; evenly spread it would be half"""


def no_overlap(account: Account) -> list[Candidate]:
    """Return exposed gradient transfers, with the same bytes overlapped with backward as the fix."""
    if account.step is None or account.replay is None or not gradient_groups_only(account):
        return []
    regions = [view.budget.regions if view.budget else None for view in account.ranks]
    backward = [r.region == Region.BACKWARD for r in regions if r is not None]
    if len(backward) < len(regions):
        return []
    done = _backward_done(account.replay, backward, rows_sent_again(account))
    if done is None or done < _LATE:
        return []
    from stepscope.analyze.replay.overlap_changes import perfectly_overlapped  # only where the fault is there

    exposed = account.step.ns("exposed_transfer")
    efficiency = account.overlap_efficiency
    return [
        Candidate(
            id="no-overlap",
            title="Gradients are sent when backward is over, not while it runs",
            cause="collectives start late: one bucket, a flat buffer, or a synchronisation after backward()",
            remedy="Use DistributedDataParallel with buckets of 4-25 MB (bucket_cap_mb), or start each all-reduce in a post-accumulate "
            "hook on a stream of its own. The saving is of the same bytes overlapped as far as dependencies allow, small messages put together "
            "into buckets of 4 MB.",
            change=perfectly_overlapped(backward),
            cost_ns=exposed,
            evidence=(
                Evidence("of backward done when gradients are sent", round(100 * done, 1), "%", "mean over bytes"),
                Evidence("exposed transfer per step", host_ms(exposed), "ms", "mean rank"),
                Evidence(
                    "gradient collectives per step", round(_sends_per_step(account.replay), 1), "calls", "mean rank"
                ),
                Evidence("overlap efficiency", round(efficiency, 3) if efficiency is not None else "unknown"),
            ),
            doubt=0.3,
            sureness=0.8,
        )
    ]


def _sends_per_step(replay: Replay) -> float:
    """Return how many gradient collectives the mean rank runs per step."""
    counts = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        sends = program.collective[program.collective != NOTHING]
        counts.append(among(rank.collectives.op[sends], GRADIENT_OPS).sum() / len(replay.steps))
    return float(np.mean(counts))


def _backward_done(replay: Replay, backward: list[Mask], again: list[Mask]) -> float | None:
    """Return how much of the backward pass was launched before the gradients were, mean over bytes; None without any.

    What is sent a second time (`again`) does not count.
    """
    done = weight = 0.0
    each = zip(replay.shared.run.ranks, replay.programs, backward, again, strict=True)
    for rank, program, mask, repeated in each:
        sends = np.flatnonzero(program.collective != NOTHING)
        sends = sends[~repeated[program.collective[sends]]]
        sends = sends[among(rank.collectives.op[program.collective[sends]], GRADIENT_OPS)]
        computing = np.flatnonzero((program.collective == NOTHING) & mask[program.device_index])
        step_of = program.step[computing]
        for step in distinct(program.step[sends]):
            mine = sends[program.step[sends] == step]
            back = computing[np.flatnonzero(step_of == step)]
            back = back[back < mine[-1]]
            total = float(program.duration_ns[back].sum())
            if not total:
                continue
            before = np.concatenate(([0.0], np.cumsum(program.duration_ns[back])))[np.searchsorted(back, mine)] / total
            size = np.maximum(rank.collectives.full_bytes[program.collective[mine]], 1)
            done += float((before * size).sum())
            weight += float(size.sum())
    return done / weight if weight else None
