"""A comparison as one HTML file that needs no network: the pieces of the report's page around another script."""

from typing import Any

from stepscope.report.html.assembled import assembled
from stepscope.report.html.data import ReportData
from stepscope.report.html.pack import packed
from stepscope.units import printable

_SCRIPTS = (
    "unpack",
    "numbers",
    "elements",
    "theme",
    "state",
    "contents",
    "sized",
    "tables",
    "compare_charts",
    "compare_lanes",
    "compare",
)


def render_comparison(document: dict[str, Any], *, lanes: dict[str, Any] | None = None) -> str:
    """Return the page of a comparison, from its JSON and the lanes of a step of each side (`side_by_side`)."""
    data = ReportData(report={**document, "lanes": lanes}, grid=None, slices=None)
    title = f"{document['a']['name']} against {document['b']['name']}"
    return assembled(packed(data), scripts=_SCRIPTS, title=title, in_words=_in_words(document))


def _in_words(document: dict[str, Any]) -> str:
    """Return the essence for a reader without scripts."""
    if document["basis"] == "bench":
        said = [(s["name"], s["verdict"], s["step_ms"]) for s in document["series"]]
    else:
        said = [("step", document["verdict"], document["step_ms"])]
    return " ".join(f"{printable(name)}: {verdict}{_times(d)}." for name, verdict, d in said)


def _times(step: dict[str, Any]) -> str:
    known = step["a"] is not None and step["b"] is not None
    return f", {step['a']:.2f} to {step['b']:.2f} ms" if known else ""
