"""Does every rendering of a run say the same? Headline, findings, budget, checks, guides, health, investigation,
comparison, next.

    python benchmarks/agreement.py FOLDER ... [--unprofiled]

Each FOLDER is a run, or holds one run (or trace) per entry. `--unprofiled` takes the step's time without the profiler
from a `truth.json` beside the traces (`step_ms_unprofiled`). A run and the next one in the folder are also compared,
as if the second were the first with a fix. Prints one line per contradiction and a count; exit code 1 where there
is any.
"""

import argparse
import io
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agreement_numbers import SLACK_MS, misfits
from rich.console import Console

from stepscope.analyze.account import Account, account_of
from stepscope.compare.document import NO_DIFFERENCE, verdict_of
from stepscope.compare.finding_change import CAME, FIXED, GREW, STAYED
from stepscope.compare.reports import FindingChange, compared
from stepscope.compare.runs import Comparison, compare
from stepscope.compare.sampled_run import run_samples
from stepscope.diagnose.checks import PASS, checks_of
from stepscope.diagnose.conclusion.categories import BALANCED, MEMORY, UNCLEAR, category_of_finding, category_times_ns
from stepscope.diagnose.findings import Diagnosis, diagnose
from stepscope.diagnose.guides import guides_of
from stepscope.diagnose.verdict import WORTH_NAMING_PCT, Conclusion, conclude
from stepscope.document.report import report_json
from stepscope.errors import StepscopeError
from stepscope.investigate.investigation import investigate
from stepscope.investigate.validation import WITHIN_CHANCE, Measurement, Validation, validate
from stepscope.report.html.page import _in_words
from stepscope.report.next_commands import next_commands
from stepscope.report.text.health import print_health
from stepscope.report.text.summary import print_summary
from stepscope.run.load import load
from stepscope.units import NS_PER_MS
from stepscope.whatif.settings import what_if

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
    full = compared(found, [reports[0]], [reports[1]])
    told = validate(pair[0], pair[1])
    if told is None:
        return []
    return [*_of_fates(full.findings, told), *_of_the_change(found, told)]


def _of_fates(changes: Sequence[FindingChange], told: Validation) -> Iterator[str]:
    """Yield findings of which one place says that they are gone and the other that they are there."""
    said: dict[str, set[str]] = {}
    for change in changes:
        if max(change.a_ns, change.b_ns) > 0:
            said.setdefault(change.id, set()).add(change.what)
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
        "report": _printed(lambda out: print_summary(account, diagnosis, out)),
        "health": _printed(lambda out: print_health(account, conclusion, checks_of(account), [], out)),
        "page": _in_words(report),
        "investigate": steps[1].answer if account.step is not None else conclusion.headline,
    }
    for place, text in places.items():
        if conclusion.headline not in text:
            yield f"{place} does not say {conclusion.headline!r}"
    if diagnosis.worth and diagnosis.worth[0].title not in steps[3].answer:
        yield f"investigate: the root cause is not {diagnosis.worth[0].title!r}"
    for missing in diagnosis.not_examined:
        if missing.rule not in places["report"]:
            yield f"report does not say that {missing.rule} was not examined"
    if "Nothing worth fixing was found." in places["report"] and diagnosis.not_examined:
        yield "all clear beside rules that were not examined"


def _of_next(account: Account, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what `next:` suggests where that is not the first finding's, or saves something else than it says."""
    commands = [command for command, _ in next_commands(diagnosis, ["RUN"])]
    suggested = [c for c in commands if c.split()[1] in ("whatif", "code")]
    if bool(suggested) != bool(diagnosis.worth):
        yield f"next suggests {suggested} beside {len(diagnosis.worth)} findings that save something"
    if not suggested or " whatif " not in suggested[0]:
        return
    first, words = diagnosis.worth[0], shlex.split(suggested[0])[3:]
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
        yield f"next: {' '.join(words)} saves {saved_ms:.3f} ms, {first.id} says {said_ms:.3f}"


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
        largest = max(account.step.parts, key=lambda p: p.ns_per_step).part
        if f"largest part of the {account.whole} is {largest}" not in steps[1].answer:
            yield f"investigate: the largest part of the {account.whole} is not {largest}"
    chip, unnamed = account.chip.chip, account.run.ranks[0].device.source != "properties"
    if chip is not None and unnamed and account.device_name not in (chip.name, "CPU"):
        yield f"the device is {account.device_name}, and taken as {chip.name}"
    if account.num_steps or account.step is None:
        return
    report = _printed(lambda out: print_summary(account, diagnosis, out))
    said = {
        "headline": conclusion.headline,
        "report": "\n".join(line for line in report.splitlines() if not line.startswith("!")),
        "investigate": "\n".join([s.answer for s in steps] + [f"{f.what} {f.unit}" for s in steps for f in s.facts]),
        **{g.id: g.why for g in guides_of(account)},
    }
    for place, text in said.items():
        for words in ("of the step", "per step", "Where the step", "inside the step", "The step waits"):
            if words in text:
                yield f"{place} says {words!r} of a run without steps"


def _printed(render: Any) -> str:
    out = Console(file=io.StringIO(), width=4000, highlight=False)
    render(out)
    return out.file.getvalue()  # type: ignore[attr-defined]


def runs_in(folder: Path) -> list[Path]:
    """Return a folder that is a run, or the runs and traces in it."""
    if folder.is_file() or any(folder.glob("rank*.json*")):
        return [folder]
    inside = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    return [p for p in inside if p.is_dir() or (".json" in p.name and p.name not in ("also.json", "README.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--unprofiled", action="store_true", help="take the unprofiled step from truth.json")
    args = parser.parse_args()
    runs = wrong = 0
    before: tuple[Path, Account] | None = None
    for path in (run for folder in args.folders for run in runs_in(folder)):
        truth = path / "truth.json"
        known = json.loads(truth.read_text())["step_ms_unprofiled"] if args.unprofiled and truth.exists() else None
        try:
            account = account_of(load([str(path)], jobs=1, cache=False), unprofiled_ms=known)
        except StepscopeError as error:
            print(f"{path.name}: not read: {error}")
            continue
        found = contradictions(account)
        if before is not None and before[0].parent == path.parent:
            found += [f"against {before[0].name}: {line}" for line in contradictions_of_pair(before[1], account)]
        before = (path, account)
        runs += 1
        wrong += bool(found)
        print(f"{path.name}: {conclude(account, diagnose(account)).headline}")
        for line in found:
            print(f"    CONTRADICTION {line}")
    print(f"{wrong} of {runs} runs contradict themselves")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
