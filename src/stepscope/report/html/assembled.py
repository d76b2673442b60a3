"""One file: template, styles, scripts and data, with a policy that lets nothing else run or load.

Names in traces are untrusted. The data is base64, which cannot close an element; the page shows names as text only;
and the policy names the one script and the one style sheet by their hashes. Standard library only: a page that was kept
is put together without the analysis.
"""

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from string import Template

from stepscope.dataclass import dataclass
from stepscope.units import printable

_SCRIPTS = (
    "unpack", "numbers", "elements", "theme", "state", "contents", "places", "summary", "switches", "charts", "memory",
    "devices", "calibration", "heatmap", "tables", "drawing", "icicle", "code", "strategy_pictures", "strategy",
    "trust", "timeline_data", "timeline_draw", "timeline_minimap", "timeline_detail", "timeline", "timeline_input",
    "main",
)  # fmt: skip


@dataclass(frozen=True)
class PageParts:
    """What the page of a run is made of besides its template, styles and scripts."""

    data: str
    """packed, as base64"""
    title: str
    in_words: str
    """for who runs no scripts"""


def page_from(parts: PageParts) -> str:
    """Return the text of a run's page."""
    return assembled(parts.data, scripts=_SCRIPTS, title=parts.title, in_words=parts.in_words)


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
