"""What does the step take with any one or two of the first fixes made? Precomputed, for switches on a page.

Each is the recorded run replayed with the changes, as `stepscope whatif` does it, and what its critical path consists
of. The path is brought to the predicted step's length, because a replay may be a little off the measured one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from stepscope.analyze.account import Account
from stepscope.analyze.replay.critical_path import critical_path
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import Fix, bounded, to_step, together
from stepscope.diagnose.findings import Diagnosis

MAX_FIXES = 8
MAX_NODES = 1_500_000
"""of all replays together: pairs are left out where they would take minutes"""


@dataclass(frozen=True)
class Switched:
    """The step with some fixes made."""

    fixes: tuple[int, ...]
    """indices into the findings"""
    saving_ns: float
    path_ns: dict[str, float]
    """what the step consists of along its critical path, in order; sums to the predicted step"""


@dataclass(frozen=True)
class Switches:
    """The step as it is, with each fix, and with each pair of them."""

    step_ns: float
    findings: tuple[int, ...]
    """which findings have a switch"""
    states: tuple[Switched, ...]
    """nothing made, then one fix each, then pairs"""
    has_pairs: bool


def switches(account: Account, diagnosis: Diagnosis) -> Switches | None:
    """Return what the first fixes and their pairs leave of the step, None where nothing can be replayed or fixed."""
    replay = account.owned_replay
    if replay is None or account.step is None or not account.step.step_ns:
        return None
    step_ns = account.step.step_ns
    saves = [i for i, f in enumerate(diagnosis.findings) if f.alone_ns > 0 and _can(diagnosis.fixes[i])][:MAX_FIXES]
    if not saves:
        return None
    pairs = list(combinations(saves, 2))
    fits = len(replay.graph) * (len(saves) + len(pairs)) <= MAX_NODES
    states = [Switched((), 0.0, _path(replay, step_ns))]
    for chosen in [*((i,) for i in saves), *(pairs if fits else ())]:
        fix = together([diagnosis.fixes[i] for i in chosen])
        states.append(_switched(replay, chosen, fix, step_ns, diagnosis))
    return Switches(step_ns, tuple(saves), tuple(states), has_pairs=fits)


def _can(fix: Fix) -> bool:
    return fix.change is not None or fix.formula_ns > 0


def _switched(replay: Replay, chosen: Sequence[int], fix: Fix, step_ns: float, diagnosis: Diagnosis) -> Switched:
    alone = [diagnosis.findings[i].alone_ns for i in chosen]
    try:
        changed = fix.change(replay) if fix.change is not None else replay
        replayed = (replay.period_ns - changed.period_ns) * to_step(replay, step_ns)
    except CircularWaits:
        changed, replayed = replay, max(alone)
    saving = bounded(replayed + fix.formula_ns, fix, step_ns=step_ns)
    # One fix saves what its finding says, and two save no less than the better of them.
    saving = alone[0] if len(chosen) == 1 else min(max(saving, *alone), step_ns)
    return Switched(tuple(chosen), saving, _path(changed, step_ns - saving))


def _path(replay: Replay, step_ns: float) -> dict[str, float]:
    """Return what the critical path consists of, brought to a step of this length."""
    found = critical_path(replay)
    scale = step_ns / found.ns_per_step if found.ns_per_step else 0.0
    return {what: ns * scale for what, ns in sorted(found.what_ns.items(), key=lambda one: -one[1])}
