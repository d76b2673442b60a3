"""What does no rule judge, however complete the recording? An all-clear says it: silence about it proves nothing."""

from stepscope.analyze.account import Account
from stepscope.diagnose.scope.needs import Scope, applies

_COSTS = "stepscope code shows what each line costs"


def not_judged(account: Account) -> tuple[str, ...]:
    """Return sentences, for one line each, on work that could be needless and that no rule asks about."""
    if not any(one is not None for one in account.ownership):
        return (
            "No rule judges work that only this job does, and its lines were not recorded: stepscope record without "
            "--light and --no-owners, or with_stack=True.",
        )
    if applies(account, Scope.HOST):
        return (
            "No rule judges work inside forward or backward that only this job does, what changes weights or gradients "
            f"in place, or what loader processes run: {_COSTS}.",
        )
    return (f"No rule judges a line that only this job has: {_COSTS}.",)
