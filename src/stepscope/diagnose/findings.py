"""Which fixes save how much? Rules propose, the replay decides.

saving alone   the run replayed with this fix and no other: what is shown first, and the order of the findings
what it adds   the same on top of all findings above it, so that no millisecond is promised twice
worth a line   a fix that saves something alone, and still does once the specific causes that save more are fixed
"""

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account, attempt
from stepscope.analyze.owner_lines import steady_stalls
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import Fix, Saving, bounded, saving_of, saving_range, to_step
from stepscope.dataclass import dataclass
from stepscope.diagnose.examined import Need, Scope, applies
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Finding, Where
from stepscope.diagnose.rules import BY_OWNER, GENERAL, SPECIFIC, Rule
from stepscope.diagnose.where import where_of
from stepscope.records import once_per_record
from stepscope.units import ms

# Which faults has nobody looked for? All clear is a claim: it holds only for rules that had what they need.


@dataclass(frozen=True)
class UnexaminedFault:
    """One fault that could be there unseen. The fields are those of the report's JSON."""

    #: the id its finding would have
    rule: str
    #: what the rule lacks, and how to get it
    needs: str


def _not_examined(account: Account, findings: Iterable[Finding], *, replayed: bool) -> tuple[UnexaminedFault, ...]:
    """Return the faults that were not found and could not be ruled out, in the order of the rules.

    Where nothing could be `replayed`, no rule can tell what its fix saves.
    """
    found = {f.id for f in findings}
    needs: dict[str, list[str]] = {}
    for rule in (*SPECIFIC, *GENERAL, *(rule for rule in BY_OWNER if rule.needs)):
        lacks = rule.lacks(account)
        if (
            not replayed
            and applies(account, rule.scope)
            and rule.finds[0] not in ("small-batch", "memory-pressure", "profiler-overhead")
        ):
            lacks.append("steps that all ranks recorded and that launch work")
        for id_ in rule.finds if lacks else ():
            needs.setdefault(id_, []).extend(lacks)
    return tuple(
        UnexaminedFault(id_, "; ".join(dict.fromkeys(lacks))) for id_, lacks in needs.items() if id_ not in found
    )


def by_need(rules: Iterable[UnexaminedFault]) -> dict[str, list[str]]:
    """Return the rules under what they lack, for one line each."""
    out: dict[str, list[str]] = {}
    for rule in rules:
        out.setdefault(rule.needs, []).append(rule.rule)
    return out


# What does no rule judge, however complete the recording? An all-clear says it: silence about it proves nothing.

_WORTH_TELLING = 0.02
_COSTS = "stepscope code shows what each line costs"


def _not_judged(account: Account) -> tuple[str, ...]:
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
    step, known = account.step, [one for one in account.line_work if one is not None]
    stalled = step.ns("host_stall") if step is not None else 0.0
    steady = np.mean([sum(steady_stalls(one).values()) for one in known])
    if step is None or stalled < _WORTH_TELLING * step.step_ns or steady >= MIN_MOSTLY * stalled:
        return ()
    return (
        f"The host stalls for {ms(stalled):.1f} ms per step, mostly in other lines every time: as far as can be told, "
        "other programs had the cores.",
    )


# A finding in the words of a run without steps: what rules say of a step then holds for the whole window.

_WORDS = (
    (re.compile(r"\b(each|every) step waits\b"), "the job waits"),
    (re.compile(r"\bThe step waits\b"), "The job waits"),
    (re.compile(r",? (per|in each|in every) step\b"), " over the window"),
    (re.compile(r"\b([Tt])he step\b"), r"\1he window"),
)


def told_of_the_window(candidate: Candidate) -> Candidate:
    """Return the same finding without a word of steps in title, cause and evidence."""
    evidence = tuple(replace(e, what=_of_window(e.what), unit=_of_window(e.unit)) for e in candidate.evidence)
    return replace(candidate, title=_of_window(candidate.title), cause=_of_window(candidate.cause), evidence=evidence)


def _of_window(text: str) -> str:
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


_MIN_SAVING_ALONE = 0.01
# of the replay is the step: then the replay is of another job than the one without the profiler
_FAR_OFF = 0.85


@dataclass(frozen=True)
class Diagnosis:
    """The findings of a run, the one that saves most by itself first."""

    findings: tuple[Finding, ...]
    #: `(ids of the first k, ns per step they save together)` for k = 1, 2, ...
    combined: tuple[tuple[tuple[str, ...], float], ...]
    #: faults that were not found and could not be ruled out
    not_examined: tuple[UnexaminedFault, ...] = ()
    #: what no rule asks about, in sentences: silence about it proves nothing
    not_judged: tuple[str, ...] = ()
    #: the change that stands for each finding's fix, in their order
    fixes: tuple[Fix, ...] = ()

    @property
    def worth(self) -> tuple[Finding, ...]:
        """Return the findings whose fix saves anything."""
        return tuple(f for f in self.findings if f.alone_ns > 0)


def diagnose(account: Account) -> Diagnosis:
    """Return the findings of an account: per step, or over the window where no step was recorded."""
    step_ns = account.step.step_ns if account.step else None
    none = Diagnosis((), ())
    found = attempt(account.failures, "findings", lambda: _found(account, step_ns), lambda: none) if step_ns else none
    unseen = _not_examined(account, found.findings, replayed=account.replay is not None)
    return replace(found, not_examined=unseen, not_judged=_not_judged(account))


def _found(account: Account, step_ns: float) -> Diagnosis:
    in_steps = account.num_steps > 0
    replays = _Replays(account.owned_replay, step_ns)
    chosen = _Selection(replays)
    found = []
    for rules in ((*SPECIFIC, *BY_OWNER), GENERAL):  # all before any fix is replayed: both take memory for a while
        usable = [rule for rule in rules if in_steps or Need.STEPS not in rule.needs]
        found.append([_replayed_once(c) for rule in usable for c in _candidates(account, rule)])
    for candidates in found:
        chosen.add(candidates if in_steps else _told_of_the_window(candidates))
    return _diagnosis(account, chosen.candidates, replays)


def _candidates(account: Account, rule: Rule) -> list[Candidate]:
    return attempt(account.failures, f"finding {rule.finds[0]}", lambda: rule(account), list)


def _told_of_the_window(candidates: list[Candidate]) -> list[Candidate]:

    return [told_of_the_window(c) for c in candidates]


def _replayed_once(candidate: Candidate) -> Candidate:
    change = candidate.change
    return candidate if change is None else replace(candidate, change=once_per_record(change))


class _Replays:
    def __init__(self, replay: Replay | None, step_ns: float) -> None:
        self.recorded = replay
        self.step_ns = step_ns

    def can_save(self, candidate: Candidate, share: float) -> bool:
        return candidate.limit_ns is None or max(0.0, candidate.limit_ns) >= share * self.step_ns

    def saving_ns(self, start: Replay | None, candidate: Candidate) -> float:
        fix, saved = candidate.fix, 0.0
        if start is not None and fix.change is not None:
            saved = (start.period_ns - self.applied(start, candidate).period_ns) * to_step(self.recorded, self.step_ns)
        return max(0.0, bounded(saved + fix.formula_ns, fix, step_ns=self.step_ns))

    def applied(self, start: Replay, candidate: Candidate) -> Replay:
        if candidate.change is None:
            return start
        try:
            return candidate.change(start)
        except CircularWaits:
            return start

    def alone(self, candidate: Candidate) -> Saving:
        try:
            found = saving_of(self.recorded, candidate.fix, step_ns=self.step_ns)
        except CircularWaits:
            return Saving(0.0, 0.0, 0.0)
        if found.ns >= 0:
            return found
        return Saving(0.0, *saving_range(self.recorded, candidate.fix, 0.0, step_ns=self.step_ns))


class _Selection:
    def __init__(self, replays: _Replays) -> None:
        self._replays = replays
        self._fixed = replays.recorded
        self.candidates: list[Candidate] = []

    def add(self, candidates: list[Candidate]) -> None:
        step_ns = self._replays.step_ns
        candidates = [c for c in candidates if c.always or self._replays.can_save(c, _MIN_SAVING_ALONE)]
        alone = [self._replays.saving_ns(self._replays.recorded, c) for c in candidates]
        open_ = [i for i, c in enumerate(candidates) if c.always or alone[i] >= _MIN_SAVING_ALONE * step_ns]
        while open_:
            fresh = self._fixed is self._replays.recorded
            still = {i: alone[i] if fresh else self._replays.saving_ns(self._fixed, candidates[i]) for i in open_}
            best = _first(open_, still, candidates)
            open_.remove(best)
            # a fix that saves a smaller share of the step is not worth a line
            if candidates[best].always or still[best] >= 0.02 * step_ns:
                self.candidates.append(candidates[best])
                if self._fixed is not None:
                    self._fixed = self._replays.applied(self._fixed, candidates[best])


def _first(open_: list[int], saving: dict[int, float], candidates: list[Candidate]) -> int:
    """Return the candidate that saves most; of several that save about the same, the one that the account blames.

    Without its synchronisation a step hides the loader behind the device: as good as a fast loader, but the device
    idles for data. So among equals the larger cost comes first, as far as the fix gets it back.
    """
    most = max(saving[i] for i in open_)
    equals = [i for i in open_ if saving[i] >= 0.9 * most]
    return max(equals, key=lambda i: (_blamed(candidates[i], saving[i]), saving[i]))


def _blamed(candidate: Candidate, saving: float) -> float:
    return saving if candidate.cost_ns is None else min(saving, candidate.cost_ns)


def _diagnosis(account: Account, candidates: list[Candidate], replays: _Replays) -> Diagnosis:
    alone = {id(c): replays.alone(c) for c in candidates}
    ordered = sorted(candidates, key=lambda c: -alone[id(c)].ns)
    findings: list[Finding] = []
    combined: list[tuple[tuple[str, ...], float]] = []
    saved, fixed = 0.0, replays.recorded
    for candidate in ordered:
        adds = min(replays.saving_ns(fixed, candidate), replays.step_ns - saved)
        if not findings:
            adds = alone[id(candidate)].ns
        saved += adds
        findings.append(_finding(account, candidate, alone[id(candidate)], adds, replays))
        combined.append((tuple(f.id for f in findings), saved))
        fixed = replays.applied(fixed, candidate) if fixed is not None else None
    return Diagnosis(tuple(findings), tuple(combined), fixes=tuple(candidate.fix for candidate in ordered))


def _finding(account: Account, candidate: Candidate, alone: Saving, adds: float, replays: _Replays) -> Finding:
    cost_ns = candidate.cost_ns
    return Finding(
        id=candidate.id,
        title=candidate.title,
        ranks=candidate.ranks,
        # What is saved was lost: a cost counted on the device alone leaves out the host's time behind it.
        cost_ns=None if cost_ns is None else min(max(cost_ns, alone.ns), replays.step_ns),
        saving_ns=adds,
        low_ns=alone.low_ns,
        high_ns=alone.high_ns,
        saving_pct=100 * alone.ns / replays.step_ns,
        alone_ns=alone.ns,
        confidence=_confidence(account, candidate),
        evidence=candidate.evidence,
        cause=candidate.cause,
        remedy=candidate.remedy,
        what_if=candidate.what_if,
        where=candidate.where or _places(account, candidate, replays),
        subject=candidate.subject,
        on_device=candidate.on_device,
    )


def _places(account: Account, candidate: Candidate, replays: _Replays) -> tuple[Where, ...]:
    recorded = replays.recorded
    if recorded is None or candidate.change is None or not any(account.ownership):
        return ()
    return where_of(account, recorded, replays.applied(recorded, candidate), ranks=candidate.ranks)


def _confidence(account: Account, candidate: Candidate) -> float:
    sure = candidate.sureness
    world = account.run.world_size
    if world and len(account.run.ranks_read) < world:
        sure *= 0.8
    if account.step and account.step.unprofiled_ns is None:
        sure *= 0.8
    if account.step and account.step.step_ns and to_step(account.replay, account.step.step_ns) < _FAR_OFF:
        sure *= 0.7
    return round(sure, 2)
