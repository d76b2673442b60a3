"""An HTML file put together from template, styles, scripts and packed data.

A policy names the one script and the one style sheet by their hashes and lets nothing else run or load. Names in traces
are untrusted: the data is base64, which cannot close an element, and the page shows names as text only. Standard
library only: a cached page needs no analysis.
"""

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from string import Template

from stepscope.contract.names import FOR_PAGES
from stepscope.records import dataclass
from stepscope.units import json_text, printable

_COMMON = ("unpack", "numbers", "elements", "theme", "state", "tables", "drawing")
_REPORT = (
    *_COMMON, "icicle", "code", "heatmap", "timeline_data", "timeline_draw", "timeline_minimap", "timeline_detail",
    "timeline", "timeline_input", "places", "summary", "switches", "strategy", "report",
)  # fmt: skip
_SHEET = (*_COMMON, "contents", "sheet")


@dataclass(frozen=True)
class Page:
    """The page of a run, as it is cached."""

    #: of the run
    name: str
    #: a rank could not be read
    is_partial: bool
    #: packed, as base64
    data: str
    #: for readers without scripts
    in_words: str

    @property
    def html(self) -> str:
        """Return the text of the file."""
        return _assembled(self.data, scripts=_REPORT, title=self.name, in_words=self.in_words)


def sheet_html(data: str, *, title: str, in_words: str) -> str:
    """Return the text of a page of cards, sections and notes."""
    return _assembled(data, scripts=_SHEET, title=title, in_words=in_words)


def _assembled(data: str, *, scripts: tuple[str, ...], title: str, in_words: str) -> str:
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
    return files(__package__).joinpath(name).read_text(encoding="utf-8").strip() + "\n"


@cache
def _script(names: tuple[str, ...]) -> str:
    parts = "\n".join(_source(f"js/{name}.js") for name in names)
    return f'"use strict";\n(() => {{\nconst NAMES = {json_text(FOR_PAGES)};\n{parts}}})();\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
