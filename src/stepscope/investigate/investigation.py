"""The five-step investigation: baseline, category, detail, root cause, and whether a fix gave what was predicted.

Each step asks one question, answers it in a sentence and keeps the numbers it rests on.
"""

from collections.abc import Iterator

from stepscope.dataclass import dataclass
from stepscope.diagnose.checks import FAIL, checks_of
from stepscope.diagnose.finding import Evidence, Finding
from stepscope.diagnose.guides import guides_of
from stepscope.diagnose.measurements import step_time_spread
from stepscope.diagnose.scope.unexamined_faults import by_need
from stepscope.diagnose.verdict import conclude
from stepscope.investigate.detail import detail_facts
from stepscope.investigate.validation import NO_PREDICTION, Measurement, Validation, validate
from stepscope.units import NS_PER_MS

_WORTH_TELLING_PCT = 1.0
_MAX_FINDINGS = 5


@dataclass(frozen=True)
class Step:
    """One step of the investigation."""

    number: int
    name: str
    question: str
    answer: str
    facts: tuple[Evidence, ...] = ()
    todo: tuple[str, ...] = ()
    """what to do next"""


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
        return Step(1, "Baseline", "How long is a step?", "No step was recorded, so nothing can be held against it.")
    known = "without the profiler" if step.unprofiled_ns else "while profiled"
    if not account.num_steps:
        said = f"No step was recorded: the whole window of {_ms(step.step_ns):g} ms is examined instead."
        return Step(1, "Baseline", "How long is a step?", said, (Evidence("window", _ms(step.step_ns), "ms", known),))
    spread = step_time_spread(account)
    facts = [
        Evidence("step", _ms(step.step_ns), "ms", known),
        Evidence("step while profiled", _ms(step.profiled_ns), "ms"),
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
    return Step(1, "Baseline", "How long is a step?", f"A step takes {_ms(step.step_ns):g} ms {known}.", tuple(facts))


def _category(run: Measurement) -> Step:
    question = "What is the step spent on?"
    step = run.account.step
    if step is None:
        return Step(2, "Category", question, "Unknown: no step was recorded.")
    parts = sorted((p for p in step.parts if p.pct >= _WORTH_TELLING_PCT), key=lambda p: -p.ns_per_step)
    facts = tuple(
        Evidence(p.part, round(p.pct, 1), f"% of the {run.account.whole}", f"{_ms(p.ns_per_step):g} ms") for p in parts
    )
    said = f"The run is {conclude(run.account, run.diagnosis).headline}."
    largest = f" The largest part of the {run.account.whole} is {parts[0].part}: {parts[0].pct:.0f} %." if parts else ""
    return Step(2, "Category", question, said + largest, facts)


def _detail(run: Measurement) -> Step:
    facts = detail_facts(run.account, conclude(run.account, run.diagnosis).verdict)
    failed = [c for c in checks_of(run.account) if c.status == FAIL]
    facts += [
        Evidence(f"check {c.id}", "fail" if c.value is None else round(c.value, 1), "", f"good {c.good}")
        for c in failed
    ]
    guides = guides_of(run.account)
    open_items = [(g, item) for g in guides for item in g.items if item.check.status == FAIL]
    facts += [
        Evidence(f"{g.id}: {i.check.id}", round(i.check.value or 0.0, 2), "", f"good {i.check.good}")
        for g, i in open_items
    ]
    said = f"{len(failed)} checks fail" if failed else "No check fails"
    shown = f"; guides that apply: {', '.join(g.id for g in guides)}" if guides else ""
    return Step(3, "Detail", "What exactly takes the time there?", f"{said}{shown}.", tuple(facts))


def _root_cause(run: Measurement) -> Step:
    question = "What causes it, and what would fixing it save?"
    worth = run.diagnosis.worth[:_MAX_FINDINGS]
    if not worth:
        none = "No fault was found whose repair saves anything worth the name."
        return Step(4, "Root cause", question, f"{none}{_unseen(run)}")
    first = worth[0]
    saves = f"Fixing it saves {_ms(first.alone_ns):g} ms per {run.account.whole} ({first.saving_pct:.0f} %)."
    said = f"{first.title}. Cause: {first.cause}. {saves}"
    facts = [Evidence(f.id, _ms(f.alone_ns), "ms saved", _range(f)) for f in worth]
    return Step(4, "Root cause", question, said, (*facts, *first.evidence), (first.remedy,))


def _unseen(run: Measurement) -> str:
    """Return what nobody has looked for."""
    lacking = by_need(run.diagnosis.not_examined)
    lines = [f"Not examined: {', '.join(rules)} ({needs})." for needs, rules in lacking.items()]
    return "".join(f" {line}" for line in (*run.diagnosis.not_judged, *lines))


def _to_validate(run: Measurement, name: str) -> Step:
    worth = run.diagnosis.worth
    if not worth:
        return Step(5, "Validation", "Did the fix help?", "There is nothing to fix that was found.")
    next_words = f"stepscope investigate {name} --fixed RUN2"
    said = f"Not done yet: fix {worth[0].id}, record again, and run `{next_words}`."
    return Step(5, "Validation", "Did the fix help?", said)


def _validation(run: Measurement, fixed: Measurement, finding: str | None) -> Step:
    question = "Did the fix save what was predicted?"
    found = validate(run, fixed, finding=finding)
    if found is None:
        return Step(5, "Validation", question, "Unknown: one of the runs has no recorded step.")
    return Step(5, "Validation", question, _told(found), _validation_facts(found), found.notes)


def _told(found: Validation) -> str:
    change = f"The step went from {_ms(found.before_ns):g} to {_ms(found.after_ns):g} ms ({found.basis})"
    if found.outcome == NO_PREDICTION:
        return f"{change}, but no finding of the first run is gone: name the one you fixed with --finding."
    assert found.predicted_ns is not None and found.low_ns is not None and found.high_ns is not None
    saved = f"{_ms(found.measured_ns):g} +- {_ms(found.doubt_ns):g} ms saved"
    said = f"{_ms(found.predicted_ns):g} ({_ms(found.low_ns):g} to {_ms(found.high_ns):g}) predicted"
    return f"{change}: {saved}, {said} for {', '.join(found.fixed)}. The prediction {_verb(found.outcome)}."


def _verb(outcome: str) -> str:
    return outcome if outcome.startswith("came") else f"did not come true: {outcome}"


def _validation_facts(found: Validation) -> tuple[Evidence, ...]:
    facts = [
        Evidence("step before", _ms(found.before_ns), "ms", found.basis),
        Evidence("step after", _ms(found.after_ns), "ms", found.basis),
        Evidence("measured saving", _ms(found.measured_ns), "ms", f"+- {_ms(found.doubt_ns):g}"),
    ]
    if found.predicted_ns is not None:
        interval = f"{_ms(found.low_ns or 0):g} to {_ms(found.high_ns or 0):g}"
        facts.append(Evidence("predicted saving", _ms(found.predicted_ns), "ms", interval))
    facts += [Evidence("fixed", id_) for id_ in found.fixed]
    facts += [Evidence("still there", id_) for id_ in found.remaining]
    facts += [Evidence("new", id_) for id_ in found.fresh]
    return tuple(facts)


def _range(finding: Finding) -> str:
    return f"{_ms(finding.low_ns):g} to {_ms(finding.high_ns):g}"


def _ms(time_ns: float) -> float:
    return round(time_ns / NS_PER_MS, 2)
