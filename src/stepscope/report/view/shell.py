"""The page around the report: tabs for the report, the tables and the timeline."""

import base64
import hashlib
import html
from importlib.resources import files
from string import Template

from stepscope.units import printable


def shell_page(name: str, *, perfetto: str, has_tables: bool = True, has_timeline: bool = True) -> str:
    """Return the page's text. `perfetto` is the address that the timeline opens in."""
    shown = {True: "", False: "hidden"}
    return Template(_source("template.html")).substitute(
        name=html.escape(printable(name)),
        perfetto=html.escape(perfetto),
        tables=shown[has_tables],
        timeline=shown[has_timeline],
        style=_STYLE,
        script=_SCRIPT,
    )


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").strip() + "\n"


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


SCRIPTS = ("numbers", "theme", "elements", "state")
"""what the page shares with the report's: files of `report/html/js`"""


def _shared(name: str) -> str:
    return files("stepscope.report.html").joinpath(f"js/{name}.js").read_text(encoding="utf-8").strip() + "\n"


_STYLE = _source("view.css")
_SCRIPT = '"use strict";\n(() => {\n' + "".join(map(_shared, SCRIPTS)) + _source("view.js") + "})();\n"
POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""the page may run its own script, show its own style, ask this server, and frame the report"""
