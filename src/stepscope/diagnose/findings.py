"""Which fixes save how much? Rules propose, the replay decides, and each further fix counts what it still saves.

candidates = what the rules see in the account
1. the fix that saves most alone comes first
2. each next one is the fix that saves most once those above it are made
"""

from dataclasses import dataclass

from stepscope.analyze.account import Account
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.predicted_step import MODEL_ERROR, saving_range
from stepscope.analyze.replay.replay import Replay
from stepscope.diagnose.finding import Candidate, Finding
from stepscope.diagnose.rules import GENERAL, SPECIFIC

LEAST_SHARE = 0.02
"""a fix that saves a smaller share of the step is not worth a line"""
_LEAST_ALONE = 0.01
_ABOUT_THE_SAME = 0.9
_FAR_OFF = 0.85
"""of the replay is the step: then the replay is of another job than the one without the profiler"""


@dataclass(frozen=True)
class Diagnosis:
    """The findings of a run, in the order in which to fix them."""

    findings: tuple[Finding, ...]
    combined: tuple[tuple[tuple[str, ...], float], ...]
    """`(ids of the first k, ns per step they save together)` for k = 1, 2, ..."""


def diagnose(account: Account) -> Diagnosis:
    """Return the findings of an account; none where no step was recorded."""
    step_ns = account.step.step_ns if account.step else None
    if not step_ns:
        return Diagnosis((), ())
    found = _Found(account, step_ns)
    found.add([c for rule in SPECIFIC for c in rule(account)])
    found.add([c for rule in GENERAL for c in rule(account)])
    return found.diagnosis()


class _Found:
    """Findings as they are made: the replay with all fixes so far, and what they save."""

    def __init__(self, account: Account, step_ns: float) -> None:
        self._account = account
        self._step_ns = step_ns
        self._fixed = account.replay
        self._scale = _shrink(account.replay, step_ns)
        self._findings: list[Finding] = []

    def add(self, candidates: list[Candidate]) -> None:
        """Take the candidates in the order of what each still saves, as far as that is worth a line."""
        alone = {i: _saving(self._account.replay, c) for i, c in enumerate(candidates)}
        open_ = [i for i, c in enumerate(candidates) if c.always or alone[i] >= _LEAST_ALONE * self._step_ns]
        while open_:
            fresh = not self._findings
            still = {i: alone[i] if fresh else _saving(self._fixed, candidates[i]) for i in open_}
            best = _first(open_, still, candidates)
            open_.remove(best)
            if candidates[best].always or still[best] >= LEAST_SHARE * self._step_ns:
                self._take(candidates[best], still[best], alone[best])

    def _take(self, candidate: Candidate, saving: float, alone: float) -> None:
        scale = self._scale if candidate.change is not None else 1.0
        within, by_itself = (min(scale * ns, self._step_ns) for ns in (saving, alone))
        self._findings.append(_finding(self._account, candidate, within, by_itself, self._step_ns))
        self._fixed = _applied(self._fixed, candidate)

    def diagnosis(self) -> Diagnosis:
        """Return the findings by saving, with what the first k save together."""
        ordered = sorted(self._findings, key=lambda f: -f.saving_ns)
        combined, saved = [], 0.0
        for k, finding in enumerate(ordered, start=1):
            saved = min(saved + finding.saving_ns, self._step_ns)
            combined.append((tuple(f.id for f in ordered[:k]), saved))
        return Diagnosis(tuple(ordered), tuple(combined))


def _shrink(replay: Replay | None, step_ns: float) -> float:
    """Return what to multiply savings by: a replay that takes longer than the step saves too much by as much.

    That happens where the profiler slowed the job beyond what any factor on the host's time explains.
    """
    return min(1.0, step_ns / replay.period_ns) if replay is not None and replay.period_ns else 1.0


def _first(open_: list[int], saving: dict[int, float], candidates: list[Candidate]) -> int:
    """Return the candidate that saves most; of several that save about the same, the one that the account blames.

    Without its synchronisation a step hides the loader behind the device: as good as a fast loader, but the device
    idles for data. So among equals the larger cost comes first, as far as the fix gets it back.
    """
    most = max(saving[i] for i in open_)
    equals = [i for i in open_ if saving[i] >= _ABOUT_THE_SAME * most]
    return max(equals, key=lambda i: (_blamed(candidates[i], saving[i]), saving[i]))


def _blamed(candidate: Candidate, saving: float) -> float:
    return saving if candidate.cost_ns is None else min(saving, candidate.cost_ns)


def _saving(replay: Replay | None, candidate: Candidate) -> float:
    """Return what a candidate's fix saves on top of a replay."""
    if candidate.change is None or replay is None:
        return candidate.fixed_saving_ns or 0.0
    changed = _applied(replay, candidate)
    return max(0.0, replay.period_ns - changed.period_ns) if changed else 0.0


def _applied(replay: Replay | None, candidate: Candidate) -> Replay | None:
    """Return the replay with a candidate's fix made; unchanged where it cannot be replayed."""
    if replay is None or candidate.change is None:
        return replay
    try:
        return candidate.change(replay)
    except CircularWaits:
        return replay


def _finding(account: Account, candidate: Candidate, saving: float, alone: float, step_ns: float) -> Finding:
    low, high = saving_range(
        account.replay, candidate.change, saving, doubt=candidate.doubt, floor_ns=MODEL_ERROR * step_ns
    )
    return Finding(
        id=candidate.id,
        title=candidate.title,
        ranks=candidate.ranks,
        cost_ns=candidate.cost_ns,
        saving_ns=saving,
        low_ns=low,
        high_ns=max(saving, min(high, step_ns)),
        saving_pct=100 * saving / step_ns,
        alone_ns=alone,
        confidence=_confidence(account, candidate),
        evidence=candidate.evidence,
        cause=candidate.cause,
        remedy=candidate.remedy,
    )


def _confidence(account: Account, candidate: Candidate) -> float:
    """Return how sure the finding is: of its cause, less for missing ranks and an unknown profiler cost."""
    sure = candidate.sureness
    world = account.run.world_size
    if world and len(account.run.ranks) < world:
        sure *= 0.8
    if account.step and account.step.unprofiled_ns is None:
        sure *= 0.8
    if account.step and account.step.step_ns and _shrink(account.replay, account.step.step_ns) < _FAR_OFF:
        sure *= 0.7
    return round(sure, 2)
