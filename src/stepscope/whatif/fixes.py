"""The change to the replay that stands for a fault the rules see: what `optimizer=fused` and the like apply."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.saving import Fix, together
from stepscope.diagnose.rules import GENERAL, SPECIFIC


def fix_of(account: Account, finding: str) -> Fix | None:
    """Return the fix of all faults with this finding id, made together; None where the run shows none that has a fix,
    or only those that say that another option gives it, or none.

    Only rules that can find it are asked: all of them take longer than the replay.
    """
    found = [
        candidate.fix
        for rule in (*SPECIFIC, *GENERAL)
        if finding in rule.finds
        for candidate in rule(account)
        if candidate.id == finding and candidate.what_if is None
    ]
    fixes = [fix for fix in found if fix.change is not None or fix.formula_ns]
    return together(fixes) if fixes else None
