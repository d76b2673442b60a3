"""The five-step investigation: baseline, category, detail, root cause, and whether a fix gave what was predicted.

Each step answers one question in a sentence, with the numbers that support it.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.budget import PART_CODE
from stepscope.compare.runs import CAME, FIXED, Key, fate, savings_by_key, step_difference
from stepscope.compare.samples import step_samples
from stepscope.contract.names import CAUSES, LOSSES, PARTS, words
from stepscope.diagnose.checks import FAIL, checks_of, guides_of, step_time_spread
from stepscope.diagnose.finding import Evidence, Finding
from stepscope.diagnose.findings import Diagnosis, by_need, conclude
from stepscope.document.sentence import three_digits, two_digits
from stepscope.records import ArrayRecord, dataclass
from stepscope.units import NS_PER_MS, printable, readable_bytes

# Details of a run by its verdict.

_TOP = 5


def _compute(account: Account) -> list[Evidence]:
    kernels = account.kernels
    facts = [
        Evidence(printable(k.name, width=60), round(100 * k.share, 1), "% of kernel time", k.bound or k.family)
        for k in kernels.top(_TOP)
    ]
    for what, share in (
        ("matrix products on tensor cores", kernels.tensor_core_share),
        ("memory-bound share of compute", kernels.memory_bound_share),
    ):
        if share is not None:
            facts.append(Evidence(what, round(100 * share, 1), "%"))
    losses = [row for row in account.waterfall.rows or () if row.loss != "achieved" and row.pct_of_peak]
    worst = sorted(losses, key=lambda r: -(r.pct_of_peak or 0.0))[:_TOP]
    facts += [Evidence(f"lost to {LOSSES[row.loss]}", round(row.pct_of_peak or 0.0, 1), "% of peak") for row in worst]
    return facts


def _communication(account: Account) -> list[Evidence]:
    steps = max(account.num_steps, 1)
    facts = []
    for row in account.collectives[:_TOP]:
        size = (
            "unknown size"
            if row.size_bytes is None
            else f"{readable_bytes(row.size_bytes / steps)} per {account.whole}"
        )
        exposed = round(row.exposed_ns / steps / NS_PER_MS, 2)
        facts.append(
            Evidence(f"{row.op} exposed", exposed, f"ms per {account.whole}", f"{row.count / steps:g} calls, {size}")
        )
        if row.busbw_gb_per_s is not None:
            facts.append(Evidence(f"{row.op} bus bandwidth", round(row.busbw_gb_per_s, 2), "GB/s"))
    if account.overlap_efficiency is not None:
        facts.append(Evidence("overlap efficiency", round(account.overlap_efficiency, 2)))
    return facts


def _stragglers(account: Account) -> list[Evidence]:
    facts = [
        Evidence(
            f"rank {s.rank} late (cause: {s.cause})",
            f"{s.steps_late} of {s.num_steps} steps",
            "",
            f"own time {three_digits(s.late_ns_per_step / NS_PER_MS)} ms over the median rank",
        )
        for s in account.stragglers
    ]
    facts += _waits(account)
    view = account.views.pipeline
    if view is not None:
        facts.append(Evidence("pipeline bubble", round(view.bubble_pct, 1), "% of the step"))
    return facts


def _waits(account: Account) -> list[Evidence]:
    if account.step is None:
        return []
    parts = [PART_CODE[part] for part in ("wait", "pipeline_bubble")]
    waits = account.step.rank_part_ns[:, parts].sum(axis=1).tolist()
    ranks = [view.rank.rank for view in account.ranks if view.budget is not None]
    shown = [(rank, round(ns / NS_PER_MS, 2)) for rank, ns in zip(ranks, waits, strict=True)]
    if len({wait for _, wait in shown}) < 2:
        return []
    ends = (("waits most", max(shown, key=lambda w: w[1])), ("waits least", min(shown, key=lambda w: w[1])))
    return [Evidence(f"rank {rank} {which}", wait, f"ms per {account.whole}") for which, (rank, wait) in ends]


def _host(account: Account) -> list[Evidence]:
    step, kernels = account.step, account.kernels
    causes = sorted((step.idle_ns if step else {}).items(), key=lambda pair: -pair[1])[:_TOP]
    facts = [
        Evidence(f"device idle: {CAUSES[cause]}", round(ns / NS_PER_MS, 2), f"ms per {account.whole}")
        for cause, ns in causes
    ]
    if kernels.launches_per_step is not None:
        facts.append(Evidence("launches", round(kernels.launches_per_step), f"per {account.whole}"))
    facts.append(
        Evidence("kernels shorter than launch latency", round(100 * kernels.short_count_share, 1), "% of kernels")
    )
    return facts


def _data(account: Account) -> list[Evidence]:
    step = account.step
    facts = (
        [Evidence("waiting for input", round(step.ns("data_loading") / NS_PER_MS, 2), f"ms per {account.whole}")]
        if step
        else []
    )
    return facts + _stragglers(account)


def _copies(account: Account) -> list[Evidence]:
    step = account.step
    copying = [Evidence("copies", round(step.ns("copy") / NS_PER_MS, 2), f"ms per {account.whole}")] if step else []
    return copying + _host(account)


_FACTS: dict[str | None, Callable[[Account], list[Evidence]]] = {
    "compute-bound": _compute,
    "memory-bound": _compute,
    "balanced": lambda account: _compute(account) + _communication(account),
    "communication-bound": _communication,
    "straggler-bound": _stragglers,
    "host-bound": _host,
    "data-bound": _data,
    "copy-bound": _copies,
    "pipeline-bound": _stragglers,
    "unclear": lambda account: _host(account) + _communication(account),
}


# Did a fix give what was predicted? Two runs, before and after, against the findings of the first.
#
# measured   = step before - step after, both without the profiler where both are known
# predicted  = what the fixed findings were to save, with their interval
# came true  = the measured saving is in that interval

CAME_TRUE, LESS, MORE = "came true", "less than predicted", "more than predicted"
NO_PREDICTION = "nothing was predicted"
WITHIN_CHANCE = "the change is within the noise: record more steps or several runs"


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(ArrayRecord):
    """One run for a validation."""

    account: Account
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Validation:
    """What a fix was to save and what it saved, per step."""

    before_ns: float
    after_ns: float
    #: `unprofiled` or `profiled`
    basis: str
    measured_ns: float
    #: half of the 95 % interval of the measured saving
    doubt_ns: float
    #: ids of the findings taken as fixed
    fixed: tuple[str, ...]
    predicted_ns: float | None
    low_ns: float | None
    high_ns: float | None
    #: `came true`, `less than predicted`, `more than predicted` or `nothing was predicted`
    outcome: str
    #: ids of findings that the second run still has, no less than half as costly
    remaining: tuple[str, ...]
    #: ids of findings that only the second run has
    fresh: tuple[str, ...]
    notes: tuple[str, ...]


def validate(before: Measurement, after: Measurement, *, finding: str | None = None) -> Validation | None:
    """Return what became of the prediction, None where one of the runs has no step.

    Without `finding` the fix is whatever of the first run's findings the second no longer shows.
    """
    first, second = before.account.step, after.account.step
    if first is None or second is None:
        return None
    both = first.unprofiled_ns is not None and second.unprofiled_ns is not None
    times = (first.step_ns, second.step_ns) if both else (first.profiled_ns, second.profiled_ns)
    measured = times[0] - times[1]
    doubt, differs = _doubt_ns(before, after, times)
    fixed = _fixed(before.diagnosis, after.diagnosis, finding)
    predicted, low, high = _prediction(fixed, times[0])
    fates = _fates(before.diagnosis, after.diagnosis)
    done = {_key(f) for f in fixed}
    return Validation(
        before_ns=times[0],
        after_ns=times[1],
        basis="unprofiled" if both else "profiled",
        measured_ns=measured,
        doubt_ns=doubt,
        fixed=tuple(f.id for f in fixed),
        predicted_ns=predicted,
        low_ns=low,
        high_ns=high,
        outcome=_outcome(measured, low, high),
        remaining=tuple(sorted({k[0] for k, what in fates.items() if what not in (*FIXED, CAME) and k not in done})),
        fresh=tuple(sorted({k[0] for k, what in fates.items() if what == CAME})),
        notes=tuple(_notes(before.account, after.account, both, told=differs and abs(measured) > doubt)),
    )


def _fixed(before: Diagnosis, after: Diagnosis, chosen: str | None) -> list[Finding]:
    if chosen is not None:
        return [f for f in before.findings if f.id == chosen]
    fates = _fates(before, after)
    return [f for f in before.worth if fates[_key(f)] in FIXED]


def _fates(before: Diagnosis, after: Diagnosis) -> dict[Key, str]:
    had, left = (savings_by_key((_key(f), f.alone_ns) for f in d.worth) for d in (before, after))
    return {key: fate(had.get(key), left.get(key)) for key in dict.fromkeys([*had, *left])}


def _key(finding: Finding) -> Key:
    return finding.id, finding.ranks


def _prediction(fixed: Sequence[Finding], step_ns: float) -> tuple[float | None, float | None, float | None]:
    if not fixed:
        return None, None, None
    if len(fixed) == 1:
        one = fixed[0]
        return one.alone_ns, one.low_ns, one.high_ns
    # Together they save what each adds to those above it; each is as unsure as it is alone.
    saving = min(sum(f.saving_ns for f in fixed), step_ns)
    low = saving - float(np.linalg.norm([f.alone_ns - f.low_ns for f in fixed]))
    high = saving + float(np.linalg.norm([f.high_ns - f.alone_ns for f in fixed]))
    return saving, max(0.0, low), min(high, step_ns)


def _outcome(measured: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return NO_PREDICTION
    if measured < low:
        return LESS
    return MORE if measured > high else CAME_TRUE


def _doubt_ns(before: Measurement, after: Measurement, times_ns: tuple[float, float]) -> tuple[float, bool]:
    """Return how well the saving is known, and whether the steps differ, both by a comparison of the two runs; 5 % of
    both steps where there are too few to tell.
    """
    found = step_difference([step_samples(before.account)], [step_samples(after.account)]).difference
    if found.p_value is None:
        return float(np.hypot(*times_ns)) * 0.05, True
    return (found.high - found.low) / 2 * NS_PER_MS, found.significant


def _notes(before: Account, after: Account, both_unprofiled: bool, *, told: bool) -> list[str]:
    notes = []
    if not told:
        notes.append(WITHIN_CHANCE)
    if not both_unprofiled:
        notes.append("profiled steps are compared: the unprofiled step time is not known for both runs")
    for what, one, other in (
        ("ranks", len(before.run.ranks), len(after.run.ranks)),
        ("strategies", before.strategy.name, after.strategy.name),
        ("devices", before.device_name, after.device_name),
    ):
        if one != other:
            notes.append(f"the runs also differ in their {what} ({one} and {other})")
    return notes


@dataclass(frozen=True)
class Step:
    """One step of the investigation."""

    number: int
    name: str
    question: str
    answer: str
    facts: tuple[Evidence, ...] = ()
    #: what to do next
    todo: tuple[str, ...] = ()


def investigate(
    run: Measurement, *, fixed: Measurement | None = None, finding: str | None = None, name: str = "RUN"
) -> Iterator[Step]:
    """Yield the five steps as they are done; `finding` names the one that `fixed` has repaired."""
    yield _baseline(run)
    yield _category(run)
    yield _detail(run)
    yield _root_cause(run)
    yield _validation(run, fixed, finding) if fixed else _to_validate(run, name)


def _baseline(run: Measurement) -> Step:
    account = run.account
    step, used = account.step, account.efficiency
    if step is None:
        return Step(1, "Baseline", "How long is a step?", "Unknown: no step was recorded.")
    known = "without the profiler" if step.unprofiled_ns else "while profiled"
    if not account.num_steps:
        said = f"No step was recorded. The whole window ({_ms_text(step.step_ns)} ms) is examined instead."
        return Step(1, "Baseline", "How long is a step?", said, (Evidence("window", _ms(step.step_ns), "ms", known),))
    spread = step_time_spread(account)
    facts = [
        Evidence("step", _ms(step.step_ns), "ms", known),
        *([Evidence("step while profiled", _ms(step.profiled_ns), "ms")] if step.unprofiled_ns else []),
        Evidence("ranks", len(account.run.ranks)),
        Evidence("recorded steps", account.num_steps),
    ]
    for what, value, unit in (
        ("profiler overhead", step.overhead_pct, "%"),
        ("step-time spread", spread.value, "%"),
        ("tokens per second", used.tokens_per_s, ""),
        ("samples per second", used.samples_per_s, ""),
        ("MFU", None if used.mfu is None else 100 * used.mfu, "%"),
    ):
        facts.append(Evidence(what, "unknown" if value is None else round(value, 2), "" if value is None else unit))
    return Step(
        1, "Baseline", "How long is a step?", f"A step takes {_ms_text(step.step_ns)} ms {known}.", tuple(facts)
    )


def _category(run: Measurement) -> Step:
    question = "What is the step spent on?"
    step, whole = run.account.step, run.account.whole
    if step is None:
        return Step(2, "Category", question, "Unknown: no step was recorded.")
    parts = sorted((p for p in step.parts if p.pct >= 1.0), key=lambda p: -p.ns_per_step)
    facts = tuple(
        Evidence(PARTS[p.part], round(p.pct, 1), f"% of the {whole}", f"{_ms_text(p.ns_per_step)} ms") for p in parts
    )
    said = f"The run is {conclude(run.account, run.diagnosis).headline}."
    largest = f" The largest part of the {whole} is {PARTS[parts[0].part]}: {parts[0].pct:.0f} %." if parts else ""
    return Step(2, "Category", question, said + largest, facts)


def _detail(run: Measurement) -> Step:
    bound = conclude(run.account, run.diagnosis).verdict
    facts = _FACTS[bound](run.account) if bound in _FACTS else []
    guides = guides_of(run.account)
    checks = [*checks_of(run.account), *(item.check for guide in guides for item in guide.items)]
    failed = {c.id: c for c in reversed(checks) if c.status == FAIL}  # a general check before that of a guide
    facts += [
        Evidence(words(c.id), "fail" if c.value is None else round(c.value, 1), "", f"good: {c.good}")
        for c in reversed(failed.values())
    ]
    said = f"{len(failed)} check{'s' * (len(failed) != 1)} failed" if failed else "All checks passed"
    shown = f"; guides that apply: {', '.join(g.title for g in guides)}" if guides else ""
    return Step(3, "Detail", "Which numbers explain it?", f"{said}{shown}.", tuple(facts))


def _root_cause(run: Measurement) -> Step:
    question = "What causes it, and what would fixing it save?"
    worth = run.diagnosis.worth[:5]
    if not worth:
        none = "No fault worth fixing was found."
        return Step(4, "Root cause", question, f"{none}{_unseen(run)}")
    first = worth[0]
    saves = f"Fixing it saves {_ms_text(first.alone_ns)} ms per {run.account.whole} ({first.saving_pct:.0f} %)."
    said = f"{first.title}. Cause: {first.cause}. {saves}"
    facts = [Evidence(f.id, _ms(f.alone_ns), "ms saved", _range_text(f.low_ns, f.high_ns)) for f in worth]
    return Step(4, "Root cause", question, said, (*facts, *first.evidence), (first.remedy,))


def _unseen(run: Measurement) -> str:
    lacking = by_need(run.diagnosis.not_examined)
    lines = [f"Not examined: {', '.join(rules)} ({needs})." for needs, rules in lacking.items()]
    return "".join(f" {line}" for line in (*run.diagnosis.not_judged, *lines))


def _to_validate(run: Measurement, name: str) -> Step:
    worth = run.diagnosis.worth
    if not worth:
        return Step(5, "Validation", "Did the fix help?", "There is nothing to fix.")
    next_words = f"stepscope investigate {name} --fixed RUN2"
    said = f"Not done yet. Fix {worth[0].id}, record again, and run `{next_words}`."
    return Step(5, "Validation", "Did the fix help?", said)


def _validation(run: Measurement, fixed: Measurement, finding: str | None) -> Step:
    question = "Did the fix save what was predicted?"
    found = validate(run, fixed, finding=finding)
    if found is None:
        return Step(5, "Validation", question, "Unknown: one of the runs has no recorded step.")
    return Step(5, "Validation", question, _told(found), _validation_facts(found), found.notes)


def _told(found: Validation) -> str:
    change = f"The step went from {_ms_text(found.before_ns)} to {_ms_text(found.after_ns)} ms ({found.basis})"
    if found.outcome == NO_PREDICTION:
        return f"{change}, but the second run has the same findings: name the fixed one with --finding."
    assert found.predicted_ns is not None and found.low_ns is not None and found.high_ns is not None
    saved = f"{_ms_text(found.measured_ns)} ± {_ms_text(found.doubt_ns)} ms saved"
    said = f"{_ms_text(found.predicted_ns)} ({_range_text(found.low_ns, found.high_ns)}) predicted"
    return f"{change}: {saved}, {said} for {', '.join(found.fixed)}. The prediction {_verb(found.outcome)}."


def _verb(outcome: str) -> str:
    return outcome if outcome.startswith("came") else f"did not come true: {outcome}"


def _validation_facts(found: Validation) -> tuple[Evidence, ...]:
    facts = [
        Evidence("step before", _ms(found.before_ns), "ms", found.basis),
        Evidence("step after", _ms(found.after_ns), "ms", found.basis),
        Evidence("measured saving", _ms(found.measured_ns), "ms", f"± {_ms_text(found.doubt_ns)}"),
    ]
    if found.predicted_ns is not None:
        interval = _range_text(found.low_ns or 0, found.high_ns or 0)
        facts.append(Evidence("predicted saving", _ms(found.predicted_ns), "ms", interval))
    facts += [Evidence("fixed", id_) for id_ in found.fixed]
    facts += [Evidence("not fixed", id_) for id_ in found.remaining]
    facts += [Evidence("new", id_) for id_ in found.fresh]
    return tuple(facts)


def _ms(time_ns: float) -> float:
    return round(time_ns / NS_PER_MS, 2)


def _ms_text(time_ns: float) -> str:
    return three_digits(time_ns / NS_PER_MS)


def _range_text(low_ns: float, high_ns: float) -> str:
    return f"{two_digits(low_ns / NS_PER_MS)}–{two_digits(high_ns / NS_PER_MS)}"  # noqa: RUF001
