"""`data-loading`: the step waits for input on all ranks (one rank alone is a straggler)."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import without_data_wait
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms, usual_host_ns


def data_loading(account: Account) -> list[Candidate]:
    """Return the wait for input, where the usual rank has one."""
    waited = usual_host_ns(account, "data_ns")
    if not waited:
        return []
    return [
        Candidate(
            id="data-loading",
            title="The step waits for its input",
            cause="the host asks for the next batch and the batch is not ready",
            remedy="Prefetch: DataLoader(num_workers=4 or more, prefetch_factor=4, persistent_workers=True, pin_memory=True); "
            "move decoding and augmentation out of the loop, or cache them. The saving is this wait gone from the step.",
            change=without_data_wait,
            cost_ns=waited,
            evidence=(Evidence("host time in the data loader per step", host_ms(waited), "ms", "median rank"),),
            sureness=0.95,
        )
    ]
