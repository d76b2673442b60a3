"""The change to the replay that stands for each fault the rules see: what `optimizer=fused` and the like apply."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import Change
from stepscope.diagnose.finding import Candidate
from stepscope.diagnose.rules import GENERAL, SPECIFIC


def fixes_of(account: Account) -> dict[str, Change]:
    """Return the fixes by finding id; several of one id are made together. Faults without a replay are left out."""
    found: dict[str, Change] = {}
    for rule in (*SPECIFIC, *GENERAL):
        for candidate in rule(account):
            if candidate.change is not None:
                found[candidate.id] = _both(found.get(candidate.id), candidate)
    return found


def _both(before: Change | None, candidate: Candidate) -> Change:
    change = candidate.change
    assert change is not None
    return change if before is None else lambda replay: change(before(replay))
