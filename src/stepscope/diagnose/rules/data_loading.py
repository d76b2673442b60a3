"""`data-loading`: the step waits for input on all ranks (one rank alone is a straggler)."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import without_data_wait
from stepscope.analyze.step.recurring import DATA_CAUSES
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms, host_part_ns, typical_host_ns
from stepscope.diagnose.rules.recurring_causes import common_ns, evidence_of

_MAX_LINES = 3
_MIN_SHARE = 0.1


def data_loading(account: Account) -> list[Candidate]:
    """Return the wait for input, where the usual rank has one: in the window's steps, or in others of the log."""
    waited, restarts = typical_host_ns(account, "data_ns"), common_ns(account, DATA_CAUSES)
    if not waited + restarts:
        return []
    cause = "the host asks for the next batch and the batch is not ready"
    if restarts > waited:
        cause = "in some steps the loader is started again or has no batch ready, and training stands still meanwhile"
    return [
        Candidate(
            id="data-loading",
            title="The step waits for its input",
            cause=cause,
            remedy="Prefetch: DataLoader(num_workers=4 or more, prefetch_factor=4, persistent_workers=True, pin_memory=True); "
            "move decoding and augmentation out of the loop, or cache them. The saving is this wait gone from the step.",
            change=without_data_wait,
            limit_ns=host_part_ns(account, "data_loading"),
            cost_ns=waited + restarts,
            evidence=(
                Evidence("host time in the data loader per step", host_ms(waited), "ms", "median rank, ordinary steps"),
                *evidence_of(account, DATA_CAUSES),
                *_dataset_lines(account),
            ),
            sureness=0.95,
        )
    ]


def _dataset_lines(account: Account) -> list[Evidence]:
    """Return the lines of the dataset in which the loader's workers spend most of their time, where sampled."""
    sampled = [owners.loader for owners in account.run.owners if owners.loader]
    shares: dict[str, float] = {}
    for lines in sampled:
        for place, share in lines:
            shares[place] = shares.get(place, 0.0) + share / len(sampled)
    largest = sorted(shares.items(), key=lambda item: -item[1])[:_MAX_LINES]
    return [
        Evidence(f"in {place}", round(100 * share, 1), "% of the time of the loader's workers in the user's code")
        for place, share in largest
        if share >= _MIN_SHARE
    ]
