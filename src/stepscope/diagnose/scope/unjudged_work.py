"""What does no rule judge, however complete the recording? An all-clear says it: silence about it proves nothing."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.steady_stalls import steady_stalls
from stepscope.diagnose.finding import MIN_MOSTLY
from stepscope.diagnose.scope.needs import Scope, applies
from stepscope.units import ms

_WORTH_TELLING = 0.02
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
            *_stopped_by_others(account),
            "No rule judges work inside forward or backward that only this job does (but for hooks of gradients), what "
            f"changes weights or gradients in place, or what loader processes run: {_COSTS}.",
        )
    return (
        "No rule judges work inside forward or backward that only this job does, what prepares its input, or what "
        f"changes weights or gradients in place: {_COSTS}.",
    )


def _stopped_by_others(account: Account) -> tuple[str, ...]:
    """Return that the host's stalls come back in no line, where they are a part of the step that shows."""
    step, known = account.step, [one for one in account.line_work if one is not None]
    stalled = step.ns("host_stall") if step is not None else 0.0
    steady = np.mean([sum(steady_stalls(one).values()) for one in known])
    if step is None or stalled < _WORTH_TELLING * step.step_ns or steady >= MIN_MOSTLY * stalled:
        return ()
    return (
        f"The host stalls for {ms(stalled):.1f} ms per step, mostly in other lines every time: as far as can be told, "
        "other programs had the cores.",
    )
