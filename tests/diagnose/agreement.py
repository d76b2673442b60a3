"""Contradictions between the renderings of a run: headline, findings, budget, checks, guides, health, `next:`, and the
numbers of the JSON report.
"""

from collections.abc import Iterator
from typing import Any

from stepscope.analyze.account import Account
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
from stepscope.report.html.page import page_of_run
from stepscope.report.summary import summary_text
from stepscope.units import NS_PER_MS
from stepscope.whatif.settings import what_if

Json = dict[str, Any]

SLACK_MS = 2e-3
"""what rounding to the contract's digits may change"""
_FAILS_WITH = {"data-bound": "data_loading_pct", "copy-bound": "host_device_copies_pct"}


def contradictions(account: Account) -> list[str]:
    """Return everything that two places of the product say differently about one run."""
    diagnosis = diagnose(account)
    conclusion = conclude(account, diagnosis)
    return [
        *(one["what"] for one in report_json(account, diagnosis)["contradictions"]),
        *_of_savings(account, diagnosis),
        *_of_verdict(account, diagnosis, conclusion),
        *_of_checks(account, conclusion),
        *_of_renderings(account, diagnosis, conclusion),
        *_of_next(account, diagnosis),
        *_of_words(account, diagnosis, conclusion),
    ]


def _of_savings(account: Account, diagnosis: Diagnosis) -> Iterator[str]:
    found = diagnosis.findings
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
    places = {
        "report": " ".join(summary_text(report, verbose=True).split()),
        "page": page_of_run(account, report_json(account, diagnosis, details=True)).in_words,
    }
    for place, text in places.items():
        if conclusion.headline[:150] not in text:  # the page cuts long ones
            yield f"{place} does not say {conclusion.headline!r}"
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
    """Yield words that do not fit the run: steps that nobody recorded, two devices."""
    chip, unnamed = account.chip.chip, account.run.ranks[0].device.source != "properties"
    if chip is not None and unnamed and account.device_name not in (chip.name, "CPU"):
        yield f"the device is {account.device_name}, and taken as {chip.name}"
    if account.num_steps or account.step is None:
        return
    said = {
        "headline": conclusion.headline,
        "report": summary_text(report_json(account, diagnosis)),
        **{g.id: g.why for g in guides_of(account)},
    }
    for place, text in said.items():
        for words in ("of the step", "per step", "Where the step", "inside the step", "The step waits"):
            if words in text:
                yield f"{place} says {words!r} of a run without steps"
