"""`host-stall`: the host does something else than training: garbage collection, logging, checkpoints, a lock."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import without_stalls
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms, usual_host_ns


def host_stall(account: Account) -> list[Candidate]:
    """Return long stretches in which the usual rank's host ran no operator and asked for no data."""
    stalled = usual_host_ns(account, "stall_ns")
    if not stalled:
        return []
    return [
        Candidate(
            id="host-stall",
            title="The host stalls inside the step",
            cause="for at least a millisecond at a time no operator, launch or data loading is recorded on the host",
            remedy="Look at what runs between the operators there (record with --stacks): gc.freeze() and gc.disable() with a "
            "collection every N steps, logging and checkpoints in a thread, no locks or sleeps in the loop. "
            "The saving is these stretches gone.",
            change=without_stalls,
            cost_ns=stalled,
            evidence=(Evidence("stalled host time per step", host_ms(stalled), "ms", "median rank"),),
            sureness=0.85,
        )
    ]
