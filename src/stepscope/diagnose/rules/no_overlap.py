"""`no-overlap`: gradient communication that could run beside the backward pass and does not."""

from stepscope.analyze.account import Account
from stepscope.analyze.region_names import Region
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.gradient_sync import gradient_groups_only
from stepscope.diagnose.rules.measures import host_ms
from stepscope.predict.communication import overlapped


def no_overlap(account: Account) -> list[Candidate]:
    """Return exposed gradient transfers, with the same bytes overlapped with backward as the fix."""
    if account.step is None or account.replay is None or not gradient_groups_only(account):
        return []
    if any(b is None or b.regions is None for b in account.budgets):
        return []
    backward = [b.regions.region == Region.BACKWARD for b in account.budgets if b and b.regions]
    exposed = account.step.ns("exposed_transfer")
    efficiency = account.overlap_efficiency
    return [
        Candidate(
            id="no-overlap",
            title="Gradients are sent when backward is over, not while it runs",
            cause="collectives start late: one bucket, a flat buffer, or a synchronisation after backward()",
            remedy="Use DistributedDataParallel with buckets of 4-25 MB (bucket_cap_mb), or start each all-reduce in a post-accumulate "
            "hook on a stream of its own. The saving is of the same bytes overlapped as far as dependencies allow.",
            change=lambda replay: overlapped(replay, backward),
            cost_ns=exposed,
            evidence=(
                Evidence("exposed transfer per step", host_ms(exposed), "ms", "mean rank"),
                Evidence("overlap efficiency", round(efficiency, 3) if efficiency is not None else "unknown"),
            ),
            doubt=0.3,
            sureness=0.8,
        )
    ]
