"""What is the page of a run made of? Its data as text, its title, and its essence in words."""

from typing import Any

from stepscope.report.html.assembled import PageParts, page_from
from stepscope.report.html.data import ReportData
from stepscope.report.html.pack import packed
from stepscope.units import printable


def page_of(data: ReportData) -> str:
    """Return the page's text."""
    return page_from(parts_of(data))


def parts_of(data: ReportData) -> PageParts:
    """Return the parts of the page."""
    return PageParts(packed(data), str(data.report["run"]["name"]), _in_words(data.report))


def _in_words(report: dict[str, Any]) -> str:
    """Return the essence for a reader without scripts."""
    step = report["step"]["unprofiled_ms"] or report["step"]["profiled_ms"]
    said = "unknown" if step is None else f"{step:.2f} ms"
    lines = [f"Verdict: {report['verdict']}: {printable(report['verdict_reason'])}. Step: {said}."]
    lines += [f"{printable(f['title'])}: saves {f['saving_alone_ms']:.2f} ms per step." for f in report["findings"]]
    return " ".join(lines)
