"""One file: template, styles, scripts and data, with a policy that lets nothing else run or load.

Names in traces are untrusted. The data is base64, which cannot close an element; the page shows names as text only;
and the policy names the one script and the one style sheet by their hashes.
"""

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from stepscope.report.html.data import ReportData
from stepscope.report.html.pack import packed
from stepscope.units import printable

_SCRIPTS = (
    "unpack", "numbers", "elements", "theme", "state", "contents", "places", "summary", "switches", "charts", "memory",
    "devices", "calibration", "heatmap", "tables", "drawing", "icicle", "code", "strategy_pictures", "strategy",
    "trust", "timeline_data", "timeline_draw", "timeline_minimap", "timeline_detail", "timeline", "timeline_input",
    "main",
)  # fmt: skip


def page_of(data: ReportData) -> str:
    """Return the page's text."""
    title = str(data.report["run"]["name"])
    return assembled(packed(data), scripts=_SCRIPTS, title=title, in_words=_in_words(data.report))


def assembled(data: str, *, scripts: tuple[str, ...], title: str, in_words: str) -> str:
    """Return a page of these scripts (files of `js/`) and its packed data; `in_words` is for who runs no scripts."""
    script, style = _script(scripts), _source("report.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_source("template.html")).substitute(
        policy=policy,
        title=html.escape(printable(title)),
        style=style,
        script=script,
        data=data,
        plain=html.escape(in_words),
    )


@cache
def _source(name: str) -> str:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return text.strip() + "\n"


@cache
def _script(names: tuple[str, ...]) -> str:
    """Return the scripts as one, in a scope of their own."""
    parts = "\n".join(_source(f"js/{name}.js") for name in names)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _in_words(report: dict[str, Any]) -> str:
    """Return the essence for a reader without scripts."""
    step = report["step"]["unprofiled_ms"] or report["step"]["profiled_ms"]
    said = "unknown" if step is None else f"{step:.2f} ms"
    lines = [f"Verdict: {report['verdict']}: {printable(report['verdict_reason'])}. Step: {said}."]
    lines += [f"{printable(f['title'])}: saves {f['saving_alone_ms']:.2f} ms per step." for f in report["findings"]]
    return " ".join(lines)
