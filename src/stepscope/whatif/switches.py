"""What does the step take with any one or two of the first fixes made? Precomputed, for switches on a page.

Each is the recorded run replayed with the changes, as the findings' savings are found, and what its critical path
consists of. The path is brought to the predicted step's length, because a replay may be a little off the measured one.
"""

from itertools import combinations

from stepscope.analyze.account import Account
from stepscope.analyze.replay.critical_path import critical_path
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import Fix, bounded, to_step
from stepscope.dataclass import dataclass
from stepscope.diagnose.findings import Diagnosis

_MAX_FIXES = 8
# of all replays together: pairs are left out where they would take minutes
_MAX_NODES = 1_500_000


@dataclass(frozen=True)
class SwitchedStep:
    """The step with some fixes made."""

    #: indices into the findings
    fixes: tuple[int, ...]
    saving_ns: float
    #: what the step consists of along its critical path, in order; sums to the predicted step
    path_ns: dict[str, float]


@dataclass(frozen=True)
class Switches:
    """The step as it is, with each fix, and with each pair of them."""

    step_ns: float
    #: which findings have a switch
    findings: tuple[int, ...]
    #: nothing made, then one fix each, then pairs
    states: tuple[SwitchedStep, ...]
    has_pairs: bool


def switches(account: Account, diagnosis: Diagnosis) -> Switches | None:
    """Return what the first fixes and their pairs leave of the step, None where nothing can be replayed or fixed."""
    replay = account.owned_replay
    if replay is None or account.step is None or not account.step.step_ns:
        return None
    step_ns = account.step.step_ns
    saves = [i for i, f in enumerate(diagnosis.findings) if f.alone_ns > 0 and _can(diagnosis.fixes[i])][:_MAX_FIXES]
    if not saves:
        return None
    pairs = list(combinations(saves, 2))
    fits = len(replay.graph) * (len(saves) + len(pairs)) <= _MAX_NODES
    made = [_Made(replay, diagnosis.fixes[i], diagnosis.findings[i].alone_ns, step_ns) for i in saves]
    states = [SwitchedStep((), 0.0, _path(replay, step_ns))]
    states += [SwitchedStep((i,), one.alone_ns, one.path()) for i, one in zip(saves, made, strict=True)]
    if fits:
        by_finding = dict(zip(saves, made, strict=True))
        states += [by_finding[i].with_second(i, j, by_finding[j]) for i, j in pairs]
    return Switches(step_ns, tuple(saves), tuple(states), has_pairs=fits)


def _can(fix: Fix) -> bool:
    return fix.change is not None or fix.formula_ns > 0


class _Made:
    def __init__(self, recorded: Replay, fix: Fix, alone_ns: float, step_ns: float) -> None:
        self.alone_ns = alone_ns
        self._recorded, self._fix, self._step_ns = recorded, fix, step_ns
        self._replay = _changed(recorded, fix)

    def path(self) -> dict[str, float]:
        return _path(self._replay, self._step_ns - self.alone_ns)

    def with_second(self, first: int, second: int, other: "_Made") -> SwitchedStep:
        fix, both = other._fix, _changed(self._replay, other._fix)
        replayed = (self._replay.period_ns - both.period_ns) * to_step(self._recorded, self._step_ns)
        adds = max(0.0, bounded(replayed + fix.formula_ns, fix, step_ns=self._step_ns))
        saving = self.alone_ns + min(adds, self._step_ns - self.alone_ns)
        return SwitchedStep((first, second), saving, _path(both, self._step_ns - saving))


def _changed(replay: Replay, fix: Fix) -> Replay:
    if fix.change is None:
        return replay
    try:
        return fix.change(replay)
    except CircularWaits:
        return replay


def _path(replay: Replay, step_ns: float) -> dict[str, float]:
    found = critical_path(replay)
    scale = step_ns / found.ns_per_step if found.ns_per_step else 0.0
    return {what: ns * scale for what, ns in sorted(found.what_ns.items(), key=lambda one: -one[1])}
