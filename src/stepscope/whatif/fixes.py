"""The change to the replay that stands for each fault the rules see: what `optimizer=fused` and the like apply."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import Fix
from stepscope.diagnose.rules import GENERAL, SPECIFIC


def fixes_of(account: Account) -> dict[str, Fix]:
    """Return the fixes by finding id; several of one id are made together. Faults without a fix are left out."""
    found: dict[str, Fix] = {}
    for rule in (*SPECIFIC, *GENERAL):
        for candidate in rule(account):
            fix = candidate.fix
            if fix.change is not None or fix.formula_ns:
                found[candidate.id] = _both(found[candidate.id], fix) if candidate.id in found else fix
    return found


def _both(one: Fix, other: Fix) -> Fix:
    """Return two fixes of one fault as one."""
    limits = (one.limit_ns, other.limit_ns)

    def change(replay: Replay) -> Replay:
        for fix in (one, other):
            replay = fix.change(replay) if fix.change is not None else replay
        return replay

    return Fix(
        change=change,
        doubt=max(one.doubt, other.doubt),
        formula_ns=one.formula_ns + other.formula_ns,
        limit_ns=None if None in limits else sum(n for n in limits if n is not None),
    )
