"""Which fixes save how much? Kinds propose, the replay decides.

saving alone   the run replayed with this fix and no other: what is shown first, and the order of the findings; an upper
               bound is in the order of the part that can be counted on
what it adds   the same after all findings above it, so that no millisecond is promised twice
worth a line   a fix that saves something alone, and still does once the specific causes that save more are fixed; the
               time that shows the fault is at least half of the saving
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepscope.analyze.account import Account, attempt
from stepscope.analyze.budget import host_device_copies
from stepscope.analyze.owner_places import MOSTLY, Where, where_of
from stepscope.analyze.replay.changes import (
    Change,
    as_graph,
    faster_network,
    faster_work,
    without_allocator,
    without_data_wait,
    without_stalls,
    without_syncs,
)
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.removal import (
    Fix,
    Saving,
    bounded,
    critical_path,
    saving_of,
    saving_range,
    to_step,
    together,
)
from stepscope.analyze.replay.replay import Replay
from stepscope.contract.names import PART_OF_FAULT, PARTS, PATH
from stepscope.cost.operators import function_of
from stepscope.diagnose import communication, device, host, lines, ranks
from stepscope.diagnose.finding import FAULTS, NEGLIGIBLE, WORTH_A_LINE, Candidate, Finding, Kind
from stepscope.diagnose.measures import COMPUTE, HOST
from stepscope.diagnose.ranks import ranks_text
from stepscope.diagnose.recording import (
    EVERYTHING,
    HOST_CATEGORIES,
    HOST_ONLY,
    MEMORY,
    Scope,
    applied,
    applies,
    longest_operator,
    memory_bound_decoding,
    recording_of,
    why_unknown,
)
from stepscope.records import dataclass, once_per_record
from stepscope.units import ms

KINDS: tuple[Kind, ...] = (*ranks.KINDS, *host.KINDS, *communication.KINDS, *device.KINDS, *lines.KINDS)


@dataclass(frozen=True)
class UnexaminedFault:
    """One fault that could be there unseen. The fields are those of the report's JSON."""

    #: the id its finding would have
    rule: str
    #: what is missing in the recording, and how to get it
    needs: str


@dataclass(frozen=True)
class Diagnosis:
    """The findings of a run, the one that saves most alone first."""

    findings: tuple[Finding, ...]
    #: `(ids of the first k, ns per step they save together)` for k = 1, 2, ...
    combined: tuple[tuple[tuple[str, ...], float], ...]
    #: faults that such a job can have and that were found or ruled out
    examined: tuple[str, ...] = ()
    #: faults that were not found and could not be ruled out
    not_examined: tuple[UnexaminedFault, ...] = ()
    #: known blind spots, in sentences
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
    unexamined = _not_examined(account, found.findings)
    return replace(
        found,
        examined=_examined(account, {one.rule for one in unexamined}),
        not_examined=unexamined,
        not_judged=_not_judged(account),
    )


def _found(account: Account, step_ns: float) -> Diagnosis:
    replays = _Replays(account.owned_replay, step_ns)
    found: dict[bool, list[Candidate]] = {False: [], True: []}
    for kind in KINDS:  # all before any fix is replayed: both take memory for a while
        found[kind.general] += [
            _memoised(c)
            for c in attempt(account.failures, f"finding {kind.id}", lambda kind=kind: kind.candidates(account), list)  # type: ignore[misc]
        ]
    return _diagnosis(account, _chosen(replays, found), replays)


def _memoised(candidate: Candidate) -> Candidate:
    change = candidate.match.change
    return (
        candidate
        if change is None
        else replace(candidate, match=replace(candidate.match, change=once_per_record(change)))
    )


class _Replays:
    """The recorded run, and what it takes with fixes made."""

    def __init__(self, replay: Replay | None, step_ns: float) -> None:
        self.recorded = replay
        self.step_ns = step_ns

    def saving_ns(self, start: Replay | None, candidate: Candidate) -> float:
        fix, saved = candidate.fix, 0.0
        if start is not None and fix.change is not None:
            saved = (start.period_ns - self.applied(start, candidate).period_ns) * to_step(self.recorded, self.step_ns)
        return max(0.0, bounded(saved + fix.formula_ns, fix, step_ns=self.step_ns))

    def joint_ns(self, fixed: Replay | None, candidates: Sequence[Candidate]) -> float:
        """Return what fixes save together, given the run with all of them made; each at most the time that it claims."""
        if fixed is None or self.recorded is None:
            return 0.0
        fix = together([c.fix for c in candidates])
        saved = (self.recorded.period_ns - fixed.period_ns) * to_step(self.recorded, self.step_ns)
        return bounded(saved + fix.formula_ns, fix, step_ns=self.step_ns)

    def applied(self, start: Replay, candidate: Candidate) -> Replay:
        change = candidate.match.change
        try:
            return start if change is None else change(start)
        except CircularWaits:
            return start

    def alone(self, candidate: Candidate) -> Saving:
        """Return what a fix saves as the only one; an upper bound with the part of it that can be counted on."""
        match = candidate.match
        try:
            found = saving_of(self.recorded, candidate.fix, step_ns=self.step_ns)
            if match.at_most:
                part = replace(candidate.fix, change=match.surely, formula_ns=0.0)
                low = 0.0 if match.surely is None else saving_of(self.recorded, part, step_ns=self.step_ns).ns
                most = max(0.0, found.ns)
                return Saving(most, min(most, max(0.0, low)), most)
        except CircularWaits:
            return Saving(0.0, 0.0, 0.0)
        if found.ns >= 0:
            return found
        return Saving(0.0, *saving_range(self.recorded, candidate.fix, 0.0, step_ns=self.step_ns))


def _chosen(replays: _Replays, found: dict[bool, list[Candidate]]) -> list[Candidate]:
    """Return the candidates worth a line, greedily by what each saves of the run with those before it fixed: specific
    ones, then upper bounds of which nothing is sure, then general ones.
    """
    fixed, step_ns, chosen = replays.recorded, replays.step_ns, list[Candidate]()
    specific = _named_once(found[False], {id(c): replays.saving_ns(replays.recorded, c) for c in found[False]})
    bounds = [c for c in specific if c.match.at_most and c.match.surely is None]
    surer = [c for c in specific if not c.match.at_most or c.match.surely is not None]
    for candidates in (surer, bounds, found[True]):
        able = [
            c
            for c in candidates
            if c.kind.always or c.match.limit_ns is None or c.match.limit_ns >= NEGLIGIBLE * step_ns
        ]
        alone = {id(c): replays.saving_ns(replays.recorded, c) for c in able}
        least = WORTH_A_LINE if candidates is bounds else NEGLIGIBLE
        left = [
            c for c in able if c.kind.always or (alone[id(c)] >= least * step_ns and _is_supported(c, alone[id(c)]))
        ]
        while left:
            fresh = fixed is replays.recorded
            still = {id(c): alone[id(c)] if fresh else replays.saving_ns(fixed, c) for c in left}
            best = _first(left, still)
            left.remove(best)
            if best.kind.always or still[id(best)] >= WORTH_A_LINE * step_ns:
                chosen.append(best)
                fixed = replays.applied(fixed, best) if fixed is not None else None
    return chosen


def _named_once(candidates: list[Candidate], saving: dict[int, float]) -> list[Candidate]:
    """Return the candidates with one for each line: the first kind whose fix saves most of what any of them saves."""
    by_line: dict[str, list[Candidate]] = {}
    for c in candidates:
        if c.kind in lines.KINDS:
            by_line.setdefault(c.match.where[0].text, []).append(c)
    others = set()
    for same in by_line.values():
        most = max(saving[id(c)] for c in same)
        best = next(c for c in same if saving[id(c)] >= MOSTLY * most)
        others |= {id(c) for c in same if c is not best}
    return [c for c in candidates if id(c) not in others]


def _is_supported(candidate: Candidate, saving_ns: float) -> bool:
    """Return whether the time that shows a fault is at least half of what its fix saves."""
    cost_ns = candidate.match.cost_ns
    return cost_ns is None or cost_ns >= MOSTLY * saving_ns


def _first(candidates: list[Candidate], saving: dict[int, float]) -> Candidate:
    """Return the candidate that saves most; of several that save about the same, the one that the account blames.

    Without its synchronisation a step hides the loader behind the device: as good as a fast loader, but the device
    idles for data. So among equals the larger cost comes first, as far as the fix gets it back.
    """
    most = max(saving[id(c)] for c in candidates)
    equals = [c for c in candidates if saving[id(c)] >= 0.9 * most]

    def blamed(c: Candidate) -> tuple[float, float]:
        saved = saving[id(c)]
        return saved if c.match.cost_ns is None else min(saved, c.match.cost_ns), saved

    return max(equals, key=blamed)


def _diagnosis(account: Account, candidates: list[Candidate], replays: _Replays) -> Diagnosis:
    alone = {id(c): replays.alone(c) for c in candidates}
    candidates = _said_once(account, candidates, {key: saving.ns for key, saving in alone.items()}, replays)
    ordered = sorted(candidates, key=lambda c: -(alone[id(c)].low_ns if c.match.at_most else alone[id(c)].ns))
    findings: list[Finding] = []
    combined: list[tuple[tuple[str, ...], float]] = []
    saved, fixed = 0.0, replays.recorded
    for made, candidate in enumerate(ordered, start=1):
        before, fixed = fixed, replays.applied(fixed, candidate) if fixed is not None else None
        adds = alone[id(candidate)].ns
        if findings:
            # A fix may shorten the replay by more than the time that it claims: what the next one claims is left to it.
            left = replays.joint_ns(fixed, ordered[:made]) - saved
            adds = min(max(replays.saving_ns(before, candidate), min(adds, left)), replays.step_ns - saved)
        saved += adds
        findings.append(_finding(account, candidate, alone[id(candidate)], adds, replays))
        combined.append((tuple(f.id for f in findings), saved))
    return Diagnosis(tuple(findings), tuple(combined), fixes=tuple(candidate.fix for candidate in ordered))


def _said_once(
    account: Account, candidates: list[Candidate], saving: dict[int, float], replays: _Replays
) -> list[Candidate]:
    """Return the candidates without those whose time is in a line that has a finding of its own and saves as much."""
    of_line = {c.match.where[0].text: saving[id(c)] for c in candidates if c.kind in lines.KINDS}

    def is_again(c: Candidate) -> bool:
        if c.kind in lines.KINDS or c.kind.always or c.match.where or not of_line:
            return False
        first = next(iter(_places(account, c, replays)), None)
        known = of_line.get(first.text, 0.0) if first is not None and first.share >= MOSTLY else 0.0
        return MOSTLY * saving[id(c)] <= known

    return [c for c in candidates if not is_again(c)]


def _finding(account: Account, candidate: Candidate, alone: Saving, adds: float, replays: _Replays) -> Finding:
    match, setting = candidate.match, FAULTS[candidate.id].setting
    cost_ns = match.cost_ns
    return Finding(
        id=candidate.id,
        title=candidate.title,
        ranks=match.ranks,
        # What is saved was lost: a cost counted on the device alone leaves out the host's time behind it.
        cost_ns=None if cost_ns is None else min(max(cost_ns, alone.ns), replays.step_ns),
        saving_ns=adds,
        low_ns=alone.low_ns,
        # where the time that shows the fault holds the saving, no interval promises more than it
        high_ns=alone.high_ns if cost_ns is None or cost_ns < alone.ns else min(alone.high_ns, cost_ns),
        saving_pct=100 * alone.ns / replays.step_ns,
        alone_ns=alone.ns,
        confidence=_confidence(account, candidate),
        evidence=match.evidence,
        cause=candidate.cause,
        remedy=candidate.remedy,
        what_if=match.what_if if match.what_if is not None else ("--set", setting) if setting else (),
        where=match.where if match.where_only else match.where or _places(account, candidate, replays),
        subject=candidate.subject,
        on_device=match.on_device,
        at_most=match.at_most,
        cpu_ns=(alone.low_ns if match.at_most else alone.ns) if account.run.lost else None,
        kind=match.title or candidate.kind.title,
    )


def _places(account: Account, candidate: Candidate, replays: _Replays) -> tuple[Where, ...]:
    recorded = replays.recorded
    if recorded is None or candidate.match.change is None or not any(account.ownership):
        return ()
    return where_of(account, recorded, replays.applied(recorded, candidate), ranks=candidate.match.ranks)


def _confidence(account: Account, candidate: Candidate) -> float:
    sure = candidate.kind.sureness if candidate.match.sureness is None else candidate.match.sureness
    world, step = account.run.world_size, account.step
    if world and len(account.run.ranks_read) < world:
        sure *= 0.8
    if step and step.unprofiled_ns is None:
        sure *= 0.8
    if step and step.step_ns and to_step(account.replay, step.step_ns) < _FITS:
        sure *= 0.7
    return round(sure, 2)


# All clear is a claim: it holds only for kinds that had what they need.


def _not_examined(account: Account, findings: Iterable[Finding]) -> tuple[UnexaminedFault, ...]:
    """Return the faults that were not found and could not be ruled out, in the order of the kinds.

    Where nothing could be replayed, no kind that saves anything can give its saving.
    """
    found, step = {f.id for f in findings}, account.step
    unknown = (step.ns("unknown") - step.unmatched_ns) / step.step_ns if step is not None and step.step_ns else 0.0
    unexplained = [f"a cause for {100 * unknown:.0f} % of the {account.whole}"] if unknown > MOSTLY else []
    needs: dict[str, list[str]] = {}
    for kind in KINDS:
        if kind.id in found or not (kind.needs or kind.general):
            continue
        lacks = kind.lacks(account)
        if account.replay is None and applies(account, kind.scope) and not kind.always:
            lacks.append("steps that all ranks recorded and that launch work")
        if FAULTS[kind.id].category in HOST_CATEGORIES and applies(account, kind.scope):
            lacks += unexplained
        part = PART_OF_FAULT.get(kind.id)
        share = step.ns(part) / step.step_ns if part and step is not None and step.step_ns else 0.0
        # launches cost something in any job
        if part and part != "launch_gap" and 100 * share >= WORTH_NAMING_PCT and kind.applies(account):
            lacks.append(f"a cause for the {PARTS[part]} of {100 * share:.0f} % of the {account.whole}")
        if lacks:
            needs.setdefault(kind.id, []).extend(lacks)
    return tuple(UnexaminedFault(id_, "; ".join(dict.fromkeys(lacks))) for id_, lacks in needs.items())


def _examined(account: Account, unexamined: set[str]) -> tuple[str, ...]:
    if account.step is None:
        return ()
    possible = {kind.id for kind in KINDS if kind.applies(account)}
    return tuple(rule for rule in FAULTS if rule in possible and rule not in unexamined)


def _not_judged(account: Account) -> tuple[str, ...]:
    """Return the known blind spots, however complete the recording."""
    costs = "stepscope code shows the cost of each line"
    if not any(one is not None for one in account.ownership):
        return (
            "Custom host work (logging, evaluation, checkpoints) is not covered: source lines were not recorded. Record with "
            "stepscope record, or with_stack=True.",
        )
    if applies(account, Scope.HOST):
        return (
            "Not covered: custom code inside forward or backward (except gradient hooks), in-place updates of weights or "
            f"gradients, and the code of loader processes; {costs}.",
        )
    return (
        f"Not covered: custom code inside forward or backward, and in-place updates of weights or gradients; {costs}.",
    )


# What bounds the run, in one word and one reason?
#
#     1. the recording cannot prove the largest part   `unclear`, with the limit of the recording
#     2. a finding is worth 10 % of the step alone     the category of the first finding, and what it costs
#     3. none is                                       the largest category of the budget, where the replay agrees that
#                                                      removing it helps; `balanced` and `memory-bound` are refinements
#     4. neither tells                                 `unclear`, with the reason
#
# Every rendering shows this one conclusion.

# What a run can be bound by: which parts of the budget, and which findings, stand for each category.

UNCLEAR = "unclear"
BALANCED = "balanced"

# every part of the budget is in one category
PARTS_OF = {
    "compute-bound": COMPUTE,
    "communication-bound": ("exposed_transfer",),
    "straggler-bound": ("wait",),
    "pipeline-bound": ("pipeline_bubble",),
    "copy-bound": ("copy",),
    "data-bound": ("data_loading",),
    "host-bound": HOST,
    UNCLEAR: ("unknown",),
}

_NOUN_OF = {
    "compute-bound": "compute",
    "communication-bound": "exposed communication",
    "straggler-bound": "waiting for other ranks",
    "pipeline-bound": "the pipeline's bubble",
    "copy-bound": "copying between host and device",
    "data-bound": "waiting for input",
    "host-bound": "the host",
}


def category_times_ns(account: Account) -> dict[str, float]:
    """Return what each category takes of the step; communication that no rank matches is communication."""
    step = account.step
    if step is None:
        return dict.fromkeys(PARTS_OF, 0.0)
    times = {name: sum(step.ns(p) for p in parts) for name, parts in PARTS_OF.items()}
    times["communication-bound"] += step.unmatched_ns
    times[UNCLEAR] -= step.unmatched_ns
    return times


def category_of_finding(account: Account, finding: Finding) -> str | None:
    """Return what a run is bound by whose largest fixable loss is this finding's; None for one that saves nothing.

    Work that need not be done costs the device's time, or the host's that launches it or waits for it: whichever is the
    larger here.
    """
    fault = FAULTS[finding.id]
    if finding.on_device or fault.category is None or not fault.or_host:
        return "compute-bound" if finding.on_device else fault.category
    times = category_times_ns(account)
    return max((fault.category, "host-bound"), key=lambda name: times[name])


def _cost_in_words(finding: Finding) -> str:
    """Return a finding in the words of a headline: `rank 1 costs 28 %`."""
    fault, named = FAULTS[finding.id], ranks_text(finding.ranks) if finding.ranks else ""
    if finding.id == "straggler":
        return f"{named} {'costs' if len(finding.ranks) == 1 else 'cost'} {finding.saving_pct:.0f} %"
    plural = fault.plural and not finding.subject
    on = f" ({named})" if named else ""
    return f"{finding.subject or fault.subject}{on} {'cost' if plural else 'costs'} {finding.saving_pct:.0f} %"


# How much shorter would the step be without a whole category of its budget? The replay's answer, as a cross-check.


def _without(account: Account, category: str) -> tuple[Replay, float] | None:
    """Return the run without a category of its budget, and what that saves per step; None where no replay can tell."""
    change = _change(account, category)
    if change is None or account.replay is None or account.step is None:
        return None
    try:
        changed = change(account.replay)
    except CircularWaits:
        return None
    saved = max(0.0, account.replay.period_ns - changed.period_ns)
    return changed, saved * to_step(account.replay, account.step.step_ns)


def _change(account: Account, category: str) -> Change | None:
    if category == "communication-bound":
        # times as fast: a network that no longer matters
        return lambda replay: faster_network(replay, 100.0)
    if category == "data-bound":
        return without_data_wait
    if category == "copy-bound":
        copies = [host_device_copies(rank) for rank in account.run.ranks]
        return lambda replay: faster_work(replay, copies, 0.0)
    if category == "host-bound" and all(rank.has_device for rank in account.run.ranks):
        return _without_host
    return None


def _without_host(replay: Replay) -> Replay:
    for change in (without_stalls, without_allocator, without_syncs, as_graph):
        replay = change(replay)
    return replay


# of the step: a fix that saves as much alone decides the verdict
WORTH_NAMING_PCT = 10.0
# characters of a kernel's name in a sentence
_LONG_NAME = 40
# of a category's time has to go when it is taken out of the replay: else something else bounds the step
_AGREES = 0.25
# of the largest part: where as much is unexplained, it may be any other that bounds the step
_AS_MUCH = 0.75
# step by replay: below, the replay is of another job
_FITS = 0.85


@dataclass(frozen=True)
class Conclusion:
    """What bounds the run."""

    #: one of the contract's words
    verdict: str
    reason: str
    #: the finding that decided it; None where the budget did
    first: Finding | None

    @property
    def headline(self) -> str:
        """Return verdict and reason in one line."""
        return f"{self.verdict}: {self.reason}"


def conclude(account: Account, diagnosis: Diagnosis) -> Conclusion:
    """Return the verdict with its reason."""
    worth = diagnosis.worth
    first = next((f for f in worth if f.saving_pct >= WORTH_NAMING_PCT), next(iter(worth), None))
    limit = _deciding_limit(account, first)
    if limit is not None:
        return Conclusion(UNCLEAR, limit, None)
    if first is not None and first.saving_pct >= WORTH_NAMING_PCT:
        category = category_of_finding(account, first)
        if category is not None:
            return Conclusion(_refined(account, category), _cost_in_words(first), first)
    return _by_budget(account, first)


def _deciding_limit(account: Account, first: Finding | None) -> str | None:
    """Return the limit of the recording whose categories take more of the step than anything that it proves."""
    times, limits = category_times_ns(account), recording_of(account).limits
    for limit, reason in limits:
        lost = sum(times.get(category, 0.0) for category in limit.unprovable)
        if limit.unprovable >= EVERYTHING:
            return f"{reason}; {limit.again}"
        proved = [ns for category, ns in times.items() if category not in limit.unprovable]
        if lost > max(*proved, first.alone_ns if first is not None else 0.0):
            return f"{reason}; {limit.again}"
    return None


def _by_budget(account: Account, first: Finding | None) -> Conclusion:
    step = account.step
    if step is None or not step.step_ns:
        return Conclusion(UNCLEAR, "no step was recorded", None)
    for limit, reason in recording_of(account).limits:
        if limit.kind == HOST_ONLY:  # the largest part of the host's time bounds nothing next to an unseen device
            return Conclusion(UNCLEAR, f"{reason}; {limit.again}", None)
    times = category_times_ns(account)
    largest = max(times, key=lambda name: times[name])
    if times[UNCLEAR] >= _AS_MUCH * times[largest] and times[largest] < MOSTLY * step.step_ns:
        largest = UNCLEAR
    of_step = f"{100 * times[largest] / step.step_ns:.0f} % of the {account.whole}"
    if largest == UNCLEAR:
        return Conclusion(UNCLEAR, f"{of_step} is unexplained{why_unknown(account, how=True)}", None)
    share = f"{_NOUN_OF[largest]} takes {of_step}"
    surely = "saves" if first is None or first.high_ns < WORTH_NAMING_PCT / 100 * step.step_ns else "is sure to save"
    best = "" if first is None else f"; no known fix {surely} {WORTH_NAMING_PCT:.0f} %"
    doubt = _doubt(account, largest, times[largest])
    if doubt is not None:
        return Conclusion(UNCLEAR, f"{share}, but {doubt}", None)
    if largest in ("compute-bound", "communication-bound") and _balanced(account):
        at_once = ", mostly at once" if times["communication-bound"] < MOSTLY * times["compute-bound"] else ""
        return Conclusion(BALANCED, f"compute and communication take about as long{at_once}; {share}", None)
    decodes = memory_bound_decoding(account) if largest == "compute-bound" else None
    unproved = recording_of(account).limit_on(MEMORY) if largest == "compute-bound" and decodes is None else None
    if unproved is not None:
        return Conclusion(UNCLEAR, unproved, None)
    why = f"; {decodes}" if decodes is not None else ""
    if largest == "compute-bound" and decodes is None:
        share += _largest_work(account)
    return Conclusion(_refined(account, largest), f"{share}{why}{best}{_made_already(account, largest)}", None)


def _largest_work(account: Account) -> str:
    """Return the kernel, or the operator of a job on hosts, that takes most of the compute, as the end of a clause."""
    kernel = next((k for k in account.kernels.kernels if k.family != "communication"), None)
    if kernel is not None:
        name = function_of(kernel.name)
        short = name if len(name) <= _LONG_NAME else f"{name[:_LONG_NAME]}…"
        return f" (kernel {short}: {100 * kernel.share:.0f} % of the kernels' time)"
    longest = longest_operator(account)
    return "" if longest is None else f" ({longest[0]}: {100 * longest[1]:.0f} % of the operators' time)"


def _made_already(account: Account, category: str) -> str:
    done = [why for finding, why in applied(account).items() if FAULTS[finding].category == category]
    return "".join(f"; {why}" for why in done)


def _doubt(account: Account, category: str, time_ns: float) -> str | None:
    if category == "straggler-bound" and not account.stragglers:
        waits = {view.rank.rank: view.wait.wait_ns or 0 for view in account.ranks if view.wait}
        least, most = min(waits, key=lambda rank: waits[rank]), max(waits, key=lambda rank: waits[rank])
        if waits[most] < 2 * waits[least]:
            return "no rank is later than the others: they take turns"
        steps = max(account.num_steps, 1)
        uneven = (
            f"rank {least} waits for {ms(waits[least] / steps):.3g} ms, rank {most} for {ms(waits[most] / steps):.3g}"
        )
        return f"no rank is late throughout: {uneven}"

    without, step, replay = _without(account, category), account.step, account.replay
    if without is None or without[1] >= _AGREES * time_ns or step is None or replay is None:
        return None
    if to_step(replay, step.step_ns) < _FITS:
        took = f"the replayed {account.whole} takes {ms(replay.period_ns):.0f} instead of {ms(step.step_ns):.0f} ms"
        return f"what removing it saves is unknown: {took}; record more steps"
    left = critical_path(without[0]).what_ns
    largest = max(left, key=lambda what: left[what])
    rest = "the host" if largest == "host" else PATH.get(largest, largest)
    return f"removing it alone saves {100 * without[1] / step.step_ns:.0f} %: {rest} takes as long"


def _refined(account: Account, category: str) -> str:
    if category != "compute-bound":
        return category
    of_compute = [k for k in account.kernels.kernels if k.family != "communication"]
    proved = sum(k.total_ns for k in of_compute if k.bound == MEMORY and k.bound_from != "family")  # bytes are known
    is_bound = proved > 0.5 * sum(k.total_ns for k in of_compute) or memory_bound_decoding(account) is not None
    return MEMORY if is_bound else category


def _balanced(account: Account) -> bool:
    compute = sum(v.window.compute.total_ns for v in account.ranks if v.window)
    comm = sum(v.window.comm.total_ns for v in account.ranks if v.window)
    transfer = comm - sum(v.wait.wait_ns or 0 for v in account.ranks if v.wait)
    return bool(compute and transfer > 0 and max(compute, transfer) <= 1.2 * min(compute, transfer))
