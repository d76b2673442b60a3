"""`host-device-sync`: .item(), .cpu(), synchronize and the like block the host inside the step."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import at_any_factor, without_syncs
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms, other_waits
from stepscope.stats.middle import median


def host_device_sync(account: Account) -> list[Candidate]:
    """Return synchronisations that made the host wait, other than those of copies to the device."""
    replay = account.replay
    if replay is None or account.step is None or not all(r.has_device for r in account.run.ranks):
        return []
    per_step = median(other_waits(account)) / max(len(replay.steps), 1)
    if not per_step:
        return []
    return [
        Candidate(
            id="host-device-sync",
            title="The host waits for the device inside the step",
            cause="a synchronisation empties the queue, and the device idles until the host has launched again",
            remedy="Keep values on the device (loss.detach() instead of loss.item(), torch.where instead of if), log every N steps, "
            "use non_blocking copies from pinned memory. The saving is of the step without these waits.",
            change=at_any_factor(without_syncs),
            cost_ns=account.step.ns("host_sync"),
            evidence=(
                Evidence("synchronisations per step", round(per_step, 1), "calls", "median rank"),
                Evidence("device idle after them per step", host_ms(account.step.ns("host_sync")), "ms"),
            ),
            doubt=0.3,
        )
    ]
