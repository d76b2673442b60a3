"""The change to the replay that stands for each fault the rules see: what `optimizer=fused` and the like apply."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.saving import Fix, together
from stepscope.diagnose.rules import GENERAL, SPECIFIC


def fixes_of(account: Account) -> dict[str, Fix]:
    """Return the fixes by finding id; several of one id are made together. Faults without a fix are left out, and those
    that say that another option gives it, or none.
    """
    found: dict[str, list[Fix]] = {}
    for rule in (*SPECIFIC, *GENERAL):
        for candidate in rule(account):
            has_fix = candidate.fix.change is not None or candidate.fix.formula_ns
            if has_fix and candidate.what_if is None:
                found.setdefault(candidate.id, []).append(candidate.fix)
    return {id_: together(fixes) for id_, fixes in found.items()}
