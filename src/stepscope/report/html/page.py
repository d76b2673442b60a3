"""The page of one run, rendered from its document and the data of its timeline."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from stepscope.analyze.account import Account
from stepscope.cost.calibration import Calibration
from stepscope.diagnose.finding import FINDING_IDS
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.report import report_json
from stepscope.document.rows import plain
from stepscope.document.sentence import caveats, headline_sentence, leading_findings, likely_text, reasons, unread
from stepscope.report.drawing import Drawing
from stepscope.report.html.assemble import Page
from stepscope.report.html.page_data import PageData, Timeline, packed
from stepscope.report.html.timeline_data import timeline_of
from stepscope.report.pictures import device_pictures, pictures_of, snapshot_memory
from stepscope.report.step_pictures import rank_times, step_times
from stepscope.units import printable

Document = Mapping[str, Any]


def render_html(account: Account, diagnosis: Diagnosis, *, calibration: Calibration | None = None) -> str:
    """Return the report as the text of one HTML file, with a picture of the calibration where one is given."""
    return page_of_run(account, report_json(account, diagnosis, details=True), calibration=calibration).html


def page_of_run(account: Account, document: Document, *, calibration: Calibration | None = None) -> Page:
    """Return the page of an account and its document."""
    data = page_data(document, timeline_of(account, document), calibration=calibration)
    data.pictures.update({name: drawing.as_json() for name, drawing in _recorded_pictures(account).items()})
    return page_of(data)


def _recorded_pictures(account: Account) -> dict[str, Drawing]:
    """Return the pictures of files next to the traces: devices over time, and the fullest memory snapshot."""
    found = {f"device_{name}": picture for name, picture in device_pictures(account.run.beside.telemetry).items()}
    folder = Path(account.run.ranks[0].trace.path).parent
    if not any(folder.glob("rank*.memory.pickle*")):
        return found
    from stepscope.analyze.memory_snapshot import snapshot_view  # only where there is one
    from stepscope.run.dumps import memory_snapshots

    views = [(rank, snapshot_view(one)) for rank, one in memory_snapshots(folder)[0]]
    for rank, view in sorted(views, key=lambda one: -one[1].peak.allocated_bytes)[:1]:
        snapshot = {"rank": rank, "timeline": view.timeline, "by_owner": view.by_owner, "by_purpose": view.by_purpose}
        drawn = {f"snapshot_{by}": snapshot_memory(snapshot, by) for by in ("owner", "purpose")}
        found |= {name: picture for name, picture in drawn.items() if picture is not None}
    return found


def page_data(document: Document, timeline: Timeline, *, calibration: Calibration | None = None) -> PageData:
    """Return what the page shows."""
    report = plain(document)  # a page cannot read NaN
    grid = timeline.grid
    drawn = {"step_times": grid and step_times(grid), "rank_times": grid and rank_times(grid, report)}
    pictures = {name: drawing.as_json() for name, drawing in drawn.items() if drawing}
    pictures |= pictures_of(report, calibration)
    trust = [line for lines in (_ranks(report), _clocks(report), _profiler(report)) for line in lines]
    return PageData(_without_drawn(report), timeline, pictures, headline_sentence(report), tuple(trust))


def page_of(data: PageData) -> Page:
    """Return the page of its data."""
    report = data.report
    words = [f"{data.sentence}{'' if data.sentence.endswith('.') else '.'}"]
    words.append(f"Verdict: {report['verdict']}: {report['verdict_reason']}.")
    words += [f"{f['title']}: saves {f['saving_alone_ms']:.2f} ms per step." for f in report["findings"]]
    is_partial = bool(report["run"].get("unreadable"))
    return Page(str(report["run"]["name"]), is_partial, packed(data), " ".join(map(printable, words)))


def _without_drawn(report: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in report.items() if name not in ("memory_steps", "memory_edges")}
    shown["docs"] = {id_: text for id_ in dict.fromkeys(f["id"] for f in report["findings"]) if (text := _docs(id_))}
    step_ms = report["step"]["unprofiled_ms"] or report["step"]["profiled_ms"]
    leading = leading_findings(report["findings"])
    shown["findings"] = [
        {**f, "likely": likely_text(f, step_ms, " ms"), "leads": f in leading} if f["saving_alone_ms"] > 0 else f
        for f in report["findings"]
    ]
    shown["reasons"] = reasons(report)
    shown["caveats"] = [*caveats(report), *unread(report)]
    shown["details"] = {name: report["details"][name] for name in ("what_if", "code_trees", "training_lines")}
    # paths on the machine that made the page: not for those who read it
    shown["run"] = {name: value for name, value in report["run"].items() if name != "sources"}
    shown["ranks"] = [{k: v for k, v in rank.items() if k not in ("step_ms", "joins")} for rank in report["ranks"]]
    if report["memory"]:
        ranks = [
            {k: v for k, v in r.items() if k not in ("timeline", "peak", "steps")} for r in report["memory"]["ranks"]
        ]
        shown["memory"] = {**report["memory"], "ranks": ranks}
    return shown


def _docs(finding: str) -> str | None:
    """Return the docs page of a finding: from the wheel, or from a checkout; None where it has neither."""
    if finding not in FINDING_IDS:  # a document that somebody else wrote
        return None
    for folder in ("docs/findings", "../../docs/findings"):
        with suppress(OSError):
            return files("stepscope").joinpath(f"{folder}/{finding}.md").read_text(encoding="utf-8")
    return None


# How far to trust the report: one line per measured property of the recording


def _ranks(report: Document) -> Iterator[str]:
    run = report["run"]
    read, world = run["num_ranks"], run["world_size"]
    of = "an unknown number of" if world is None else str(world)
    events = sum(r["num_events"] for r in report["ranks"])
    steps = run["num_steps"]
    yield f"{read} of {of} ranks read, {events:,} events, {steps} recorded step{'' if steps == 1 else 's'}"
    if run.get("asked_by"):
        yield f"window {run['window']} of the job, triggered by: {run['asked_by']}"
    if run.get("failure"):
        yield f"the job failed: {run['failure']}"
    by_order = [r["rank"] for r in report["ranks"] if r.get("rank_source") == "order"]
    if by_order and read > 1:
        yield f"{len(by_order)} ranks are numbered by the order of their files, which do not contain a rank"


def _clocks(report: Document) -> Iterator[str]:
    known = [r["clock_uncertainty_us"] for r in report["ranks"] if r["clock_uncertainty_us"] is not None]
    if known:
        yield f"clocks aligned by matched collectives, within ±{max(known):,.0f} µs on the least certain rank"
    elif report["run"]["num_ranks"] > 1:
        yield "clocks of the ranks are not aligned: no collective could be matched"


def _profiler(report: Document) -> Iterator[str]:
    overhead = report["step"]["profiler_overhead_pct"]
    if overhead is None:
        yield "profiler overhead unknown: no step without the profiler was recorded"
    elif overhead <= 0:
        yield "no profiler overhead detected"
    else:
        distorted = "; small times are distorted" if overhead > 20 else ""
        yield f"the profiler made the step {overhead:.1f} % longer{distorted}"
