"""Which fixes save how much? Rules propose, the replay decides, and each further fix counts what it still saves.

    candidates = what the rules see in the account
    1. the fix that saves most alone comes first
    2. each next one is the fix that saves most once those above it are made
"""

from dataclasses import dataclass

from stepscope.analyze.account import Account
from stepscope.analyze.graph import CircularWaits
from stepscope.analyze.replay import Replay
from stepscope.diagnose.finding import Candidate, Finding
from stepscope.diagnose.rules import RULES
from stepscope.predict.whatif import saving_range

LEAST_SHARE = 0.02
"""a fix that saves a smaller share of the step is not worth a line"""
_LEAST_ALONE = 0.01
_MODEL_ERROR = 0.05
"""of the step: what a replay is wrong by, about, however good its inputs"""


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
    candidates = [c for rule in RULES for c in rule(account)]
    alone = {i: _saving(account.replay, c, step_ns) for i, c in enumerate(candidates)}
    open_ = [i for i, c in enumerate(candidates) if c.always or alone[i] >= _LEAST_ALONE * step_ns]
    findings: list[Finding] = []
    combined: list[tuple[tuple[str, ...], float]] = []
    fixed, saved = account.replay, 0.0
    while open_:
        still = {i: _saving(fixed, candidates[i], step_ns) if findings else alone[i] for i in open_}
        best = max(open_, key=lambda i: still[i])
        open_.remove(best)
        candidate, saving = candidates[best], still[best]
        if saving < LEAST_SHARE * step_ns and not candidate.always:
            continue
        findings.append(_finding(account, candidate, saving, alone[best], step_ns))
        fixed = _applied(fixed, candidate)
        saved = min(saved + saving, step_ns)
        combined.append((tuple(f.id for f in findings), saved))
    return Diagnosis(tuple(findings), tuple(combined))


def _saving(replay: Replay | None, candidate: Candidate, step_ns: float) -> float:
    """Return what a candidate's fix saves on top of a replay, on the scale of the real step."""
    if candidate.change is None or replay is None:
        return candidate.fixed_saving_ns or 0.0
    changed = _applied(replay, candidate)
    if changed is None:
        return 0.0
    return max(0.0, (replay.period_ns - changed.period_ns))


def _applied(replay: Replay | None, candidate: Candidate) -> Replay | None:
    """Return the replay with a candidate's fix made; unchanged where it cannot be replayed."""
    if replay is None or candidate.change is None:
        return replay
    try:
        return candidate.change(replay)
    except CircularWaits:
        return replay


def _finding(account: Account, candidate: Candidate, saving: float, alone: float, step_ns: float) -> Finding:
    low, high = saving_range(account.replay, candidate.change, saving, doubt=candidate.doubt, floor_ns=_MODEL_ERROR * step_ns)
    return Finding(
        id=candidate.id,
        title=candidate.title,
        ranks=candidate.ranks,
        cost_ns=candidate.cost_ns,
        saving_ns=saving,
        low_ns=low,
        high_ns=min(high, step_ns),
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
    return round(sure, 2)
