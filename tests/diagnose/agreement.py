"""Contradictions between the renderings of a run: headline, findings, budget, checks, guides, health, investigation,
comparison, `next:`, and the numbers of the JSON report.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from stepscope.analyze.account import Account
from stepscope.compare.document import NO_DIFFERENCE, finding_changes, verdict_of
from stepscope.compare.runs import CAME, FIXED, GREW, STAYED, Comparison, compare
from stepscope.compare.samples import run_samples
from stepscope.contract.names import PARTS
from stepscope.diagnose.checks import PASS, checks_of, guides_of
from stepscope.diagnose.findings import (
    BALANCED,
    UNCLEAR,
    WORTH_NAMING_PCT,
    Conclusion,
    Diagnosis,
    category_of_finding,
    category_times_ns,
    conclude,
    diagnose,
)
from stepscope.diagnose.recording import MEMORY, recording_of
from stepscope.document.report import report_json
from stepscope.investigate.investigation import WITHIN_CHANCE, Measurement, Validation, investigate, validate
from stepscope.report.html.page import page_of_run
from stepscope.report.text.summary import summary_text
from stepscope.units import NS_PER_MS
from stepscope.whatif.settings import what_if

Json = dict[str, Any]

SLACK_MS = 2e-3
"""what rounding to the contract's digits may change"""
_SLACK = 1e-3
"""of a time, for the same reason"""
_COMPUTE = ("forward", "backward", "optimizer", "other_compute")
_BUSY = (*_COMPUTE, "copy", "exposed_transfer")
_NOT_REMOVED = {
    "data-loading": _BUSY,
    "host-device-sync": _BUSY,
    "allocator": _BUSY,
    "launch-overhead": _BUSY,
    "host-stall": (*_COMPUTE, "exposed_transfer"),
    "no-overlap": (*_COMPUTE, "copy"),
    "communication-bound": (*_COMPUTE, "copy"),
    "too-many-small-collectives": (*_COMPUTE, "copy"),
    "pipeline-bubble": (*_COMPUTE, "copy"),
}
"""parts of the budget that the fix of a finding leaves as they are: it saves no more than the rest"""

_OF_A_RANK = ("compute_ms", "comm_ms", "memory_ms", "exposed_comm_ms", "idle_ms", "wait_ms", "transfer_ms")
_FAILS_WITH = {"data-bound": "data_loading_pct", "copy-bound": "host_device_copies_pct"}


def contradictions(account: Account) -> list[str]:
    """Return everything that two places of the product say differently about one run."""
    diagnosis = diagnose(account)
    conclusion = conclude(account, diagnosis)
    return [
        *misfits(report_json(account, diagnosis)),
        *_of_savings(account, diagnosis),
        *_of_verdict(account, diagnosis, conclusion),
        *_of_checks(account, conclusion),
        *_of_renderings(account, diagnosis, conclusion),
        *_of_next(account, diagnosis),
        *_of_words(account, diagnosis, conclusion),
    ]


def contradictions_of_pair(before: Account, after: Account) -> list[str]:
    """Return what `compare` and `investigate --fixed` say differently about two runs."""
    pair = [Measurement(account, diagnose(account)) for account in (before, after)]
    reports = [report_json(m.account, m.diagnosis) for m in pair]
    samples = [run_samples(account) for account in (before, after)]
    found = compare([samples[0]], [samples[1]])
    fates = finding_changes([reports[0]], [reports[1]])
    told = validate(pair[0], pair[1])
    if told is None:
        return []
    return [*_of_fates(fates, told), *_of_the_change(found, told)]


def _of_fates(changes: Sequence[Json], told: Validation) -> Iterator[str]:
    """Yield findings of which one place says that they are gone and the other that they are there."""
    said: dict[str, set[str]] = {}
    for change in changes:
        if max(change["a_saving_ms"], change["b_saving_ms"]) > 0:
            said.setdefault(change["id"], set()).add(change["what"])
    stays = {GREW, STAYED}
    for word, ids, fits in (
        ("fixed", told.fixed, set(FIXED)),
        ("there", told.remaining, stays),
        ("new", told.fresh, {CAME}),
    ):
        for id_ in ids:
            if not said.get(id_, set()) & fits:
                yield f"investigate: {id_} is {word}; compare: it {' and '.join(sorted(said.get(id_, {'is nowhere'})))}"


def _of_the_change(found: Comparison, told: Validation) -> Iterator[str]:
    """Yield a step that is longer in one place and shorter in the other."""
    word = verdict_of(found.step)
    if {"slower": told.measured_ns > told.doubt_ns, "faster": told.measured_ns < -told.doubt_ns}.get(word):
        yield f"compare: {word}; investigate: {told.measured_ns / NS_PER_MS:.2f} ms saved"
    if told.basis != found.basis:
        yield f"compare: {found.basis} steps; investigate: {told.basis} ones"
    if word == NO_DIFFERENCE and WITHIN_CHANCE not in told.notes:
        yield f"compare: {word}; investigate: {told.measured_ns:.0f} +- {told.doubt_ns:.0f} ns saved"


def _of_savings(account: Account, diagnosis: Diagnosis) -> Iterator[str]:
    found = diagnosis.findings
    if [f.alone_ns for f in found] != sorted((f.alone_ns for f in found), reverse=True):
        yield "findings are not in the order of what each saves alone"
    if not found or account.step is None:
        return
    step_ns = account.step.step_ns
    for f in found:
        if not 0 <= f.low_ns <= f.alone_ns <= f.high_ns <= step_ns * (1 + 1e-9):
            yield f"{f.id}: {f.alone_ns} outside {f.low_ns} to {f.high_ns}, or above the step of {step_ns}"
        if abs(f.saving_pct - 100 * f.alone_ns / step_ns) > 1e-6:
            yield f"{f.id}: {f.saving_pct} % is not {f.alone_ns} of {step_ns}"
        if f.cost_ns is not None and not f.alone_ns <= f.cost_ns * (1 + 1e-9) <= step_ns * (1 + 1e-6):
            yield f"{f.id}: saves {f.alone_ns}, costs {f.cost_ns}, of {step_ns}"
    together = [ns for _, ns in diagnosis.combined]
    if together != sorted(together) or together[-1] > step_ns * (1 + 1e-9) or together[0] != found[0].alone_ns:
        yield f"combined savings {together} do not grow from the first to at most the step of {step_ns}"


def _of_verdict(account: Account, diagnosis: Diagnosis, conclusion: Conclusion) -> Iterator[str]:
    first = diagnosis.worth[0] if diagnosis.worth else None
    told = "compute-bound" if conclusion.verdict == MEMORY else conclusion.verdict
    if conclusion.verdict == UNCLEAR and recording_of(account).limits:
        return
    if first is not None and first.saving_pct >= WORTH_NAMING_PCT:
        if told != category_of_finding(account, first):
            yield f"verdict {conclusion.verdict} beside a first finding {first.id} of {first.saving_pct:.0f} %"
        if f"{first.saving_pct:.0f} %" not in conclusion.reason:
            yield f"headline {conclusion.headline!r} does not say what {first.id} costs"
        return
    times = category_times_ns(account)
    largest = max(times, key=lambda name: times[name])
    if account.step is not None and told not in (largest, UNCLEAR, BALANCED):
        yield f"verdict {conclusion.verdict} where the largest part of the budget is {largest}"


def _of_checks(account: Account, conclusion: Conclusion) -> Iterator[str]:
    """Yield checks and guides that call good what the verdict blames."""
    check = _FAILS_WITH.get(conclusion.verdict)
    for c in checks_of(account):
        if c.id == check and c.status == PASS:
            yield f"{conclusion.verdict}, and {c.id} passes with {c.value}"
    guides = {g.id for g in guides_of(account)}
    if conclusion.verdict == "communication-bound" and "slow-communication" not in guides:
        yield "communication-bound, and the guide on slow communication does not apply"


def _of_renderings(account: Account, diagnosis: Diagnosis, conclusion: Conclusion) -> Iterator[str]:
    report = report_json(account, diagnosis)
    if (report["verdict"], report["verdict_reason"]) != (conclusion.verdict, conclusion.reason):
        yield f"JSON says {report['verdict']}: {report['verdict_reason']}"
    steps = list(investigate(Measurement(account, diagnosis)))
    places = {
        "report": " ".join(summary_text(report, verbose=True).split()),
        "page": page_of_run(account, report_json(account, diagnosis, details=True)).in_words,
        "investigate": steps[1].answer if account.step is not None else conclusion.headline,
    }
    for place, text in places.items():
        if conclusion.headline[:150] not in text:  # the page cuts long ones
            yield f"{place} does not say {conclusion.headline!r}"
    if diagnosis.worth and diagnosis.worth[0].title not in steps[3].answer:
        yield f"investigate: the root cause is not {diagnosis.worth[0].title!r}"
    for missing in diagnosis.not_examined:
        if missing.rule not in places["report"]:
            yield f"report does not say that {missing.rule} was not examined"


def _of_next(account: Account, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield where the what-if of the first finding saves something else than it says."""
    words = report_json(account, diagnosis)["findings"][0]["what_if"] if diagnosis.worth else []
    if not words:
        return
    first = diagnosis.worth[0]
    given = dict(zip(words[::2], words[1::2], strict=True))
    answer = what_if(
        account,
        [given[key] for key in given if key == "--set"],
        without=[given[key] for key in given if key == "--without"],
        scale=[given[key] for key in given if key == "--scale"],
        ranks=[int(rank) for rank in given["--ranks"].split(",")] if "--ranks" in given else None,
    ).prediction
    saved_ms, said_ms = ((answer.baseline_ns - answer.step_ns) / NS_PER_MS, first.alone_ns / NS_PER_MS)
    alike = [f for f in diagnosis.findings if f.id == first.id]
    # A setting stands for one finding, a line or a module for itself; a factor is said in four digits.
    slack_ms = SLACK_MS + (1e-3 if "--scale" in given else 1e-6) * said_ms
    if (len(alike) == 1 or "--set" not in given) and abs(saved_ms - said_ms) > slack_ms:
        yield f"whatif {' '.join(words)} saves {saved_ms:.3f} ms, {first.id} says {said_ms:.3f}"


def _of_words(account: Account, diagnosis: Diagnosis, conclusion: Conclusion) -> Iterator[str]:
    """Yield words that do not fit the run: steps that nobody recorded, a rank that is both ends, two devices."""
    steps = list(investigate(Measurement(account, diagnosis)))
    facts = [fact.what for fact in steps[2].facts]
    most, least = ([w.split()[1] for w in facts if w.endswith(end)] for end in ("waits most", "waits least"))
    if set(most) & set(least):
        yield f"investigate: rank {most[0]} waits most and least"
    if diagnosis.worth and diagnosis.worth[0].id not in steps[4].answer:
        yield f"investigate: what to fix next is not {diagnosis.worth[0].id}"
    if account.step is not None and account.step.parts:
        largest = PARTS[max(account.step.parts, key=lambda p: p.ns_per_step).part]
        if f"largest part of the {account.whole} is {largest}" not in steps[1].answer:
            yield f"investigate: the largest part of the {account.whole} is not {largest}"
    chip, unnamed = account.chip.chip, account.run.ranks[0].device.source != "properties"
    if chip is not None and unnamed and account.device_name not in (chip.name, "CPU"):
        yield f"the device is {account.device_name}, and taken as {chip.name}"
    if account.num_steps or account.step is None:
        return
    said = {
        "headline": conclusion.headline,
        "report": summary_text(report_json(account, diagnosis)),
        "investigate": "\n".join([s.answer for s in steps] + [f"{f.what} {f.unit}" for s in steps for f in s.facts]),
        **{g.id: g.why for g in guides_of(account)},
    }
    for place, text in said.items():
        for words in ("of the step", "per step", "Where the step", "inside the step", "The step waits"):
            if words in text:
                yield f"{place} says {words!r} of a run without steps"


# Numbers of one report, from its JSON alone


def misfits(report: Json) -> Iterator[str]:
    """Yield every number of a report that another one of it rules out."""
    yield from _of_the_step(report)
    yield from _of_findings(report)
    yield from _of_ranks(report)
    yield from _of_stragglers(report)
    yield from _of_efficiency(report)


def _step_ms(report: Json) -> float | None:
    step = report["step"]
    known = step["unprofiled_ms"] if step["unprofiled_ms"] is not None else step["profiled_ms"]
    return None if known is None else float(known)


def _within(value: float, most: float) -> bool:
    return value <= most * (1 + _SLACK) + SLACK_MS


def _of_the_step(report: Json) -> Iterator[str]:
    step_ms, parts = _step_ms(report), report["step"]["budget"]
    if parts and step_ms is not None:
        total = sum(p["ms_per_step"] for p in parts)
        if not (_within(total, step_ms) and _within(step_ms, total)):
            yield f"the parts of the budget are {total:.3f} ms, the step is {step_ms:.3f}"
        for p in parts:
            if p["ms_per_step"] < 0 or abs(p["pct"] - 100 * p["ms_per_step"] / step_ms) > 0.1:
                yield f"{p['part']}: {p['ms_per_step']} ms is {p['pct']} % of {step_ms:.3f}"
    lost = [row["pct_of_peak"] for row in report["waterfall"] or ()]
    if lost and (abs(sum(lost) - 100) > 0.5 or min(lost) < 0):
        yield f"the waterfall is {lost}, {sum(lost):.2f} together"


def _of_findings(report: Json) -> Iterator[str]:
    step_ms = _step_ms(report)
    parts = {p["part"]: p["ms_per_step"] for p in report["step"]["budget"] or ()}
    on_device = any(rank["compute_ms"] for rank in report["ranks"]) and report["run"]["device"] != "CPU"
    for f in report["findings"]:
        saved, cost = f["saving_alone_ms"], f["cost_ms_per_step"]
        if step_ms is None:
            yield f"{f['id']} beside a step that is not known"
            continue
        if cost is not None and not (_within(cost, step_ms) and _within(saved, cost)):
            yield f"{f['id']} costs {cost} and saves {saved} of {step_ms:.3f} ms"
        if not (_within(saved, f["saving_high_ms"]) and _within(f["saving_low_ms"], saved) and f["saving_low_ms"] >= 0):
            yield f"{f['id']}: {saved} ms is not in {f['saving_low_ms']} to {f['saving_high_ms']}"
        if not _within(max(saved, f["saving_high_ms"], f["saving_ms_per_step"]), step_ms):
            yield f"{f['id']} saves up to {f['saving_high_ms']} of {step_ms:.3f} ms"
        if abs(f["saving_pct"] - 100 * saved / step_ms) > 0.1:
            yield f"{f['id']}: {f['saving_pct']} % is not {saved} of {step_ms:.3f} ms"
        # A line that is taken out may take the device's work with it.
        kept = _NOT_REMOVED.get(f["id"]) if on_device and not f["where"] else None
        if kept and not _within(saved, step_ms - sum(parts.get(name, 0.0) for name in kept)):
            yield f"{f['id']} saves {saved} ms, {step_ms:.3f} less {', '.join(kept)} is what it can remove"
    together = [row["saving_ms_per_step"] for row in report["findings_combined"]]
    if together and (together != sorted(together) or step_ms is None or not _within(together[-1], step_ms)):
        yield f"together the first ones save {together} ms of {step_ms}"


def _of_ranks(report: Json) -> Iterator[str]:
    for rank in report["ranks"]:
        name, window = f"rank {rank['rank']}", rank["window_ms"]
        known = {key: rank[key] for key in _OF_A_RANK if rank[key] is not None}
        for key, value in known.items():
            if value < 0 or (window is not None and not _within(value, window)):
                yield f"{name}: {key} is {value} in a window of {window}"
        comm = known.get("comm_ms")
        if comm is not None:
            for key in ("exposed_comm_ms", "wait_ms", "transfer_ms"):
                if key in known and not _within(known[key], comm):
                    yield f"{name}: {key} is {known[key]} of {comm} ms of communication"
            # What no other rank matches is neither.
            both = known.get("wait_ms", 0.0) + known.get("transfer_ms", 0.0)
            if not _within(both, comm):
                yield f"{name}: waits and transfers are {both} of {comm} ms of communication"
        if rank["overlap_pct"] is not None and not 0 <= rank["overlap_pct"] <= 100:
            yield f"{name}: {rank['overlap_pct']} % of communication is hidden"


def _of_stragglers(report: Json) -> Iterator[str]:
    longest = max((ms for rank in report["ranks"] for ms in rank["step_ms"] or ()), default=None)
    longest = max(longest or 0.0, _step_ms(report) or 0.0)
    for s in report["stragglers"]:
        if s["late_ms_per_step"] <= 0 or not _within(s["late_ms_per_step"], longest):
            yield f"rank {s['rank']} is {s['late_ms_per_step']} ms late in steps of at most {longest:.3f}"


def _of_efficiency(report: Json) -> Iterator[str]:
    used = report["efficiency"]
    shares = [(key, used[key]) for key in ("mfu", "hfu") if used[key] is not None]
    for key, share in shares:
        if not 0 <= share <= 1:
            yield f"{key} is {share}"
    if len(shares) == 2 and not _within(shares[0][1], shares[1][1]):
        yield f"MFU {used['mfu']} is above HFU {used['hfu']}"
