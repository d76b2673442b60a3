"""The HTML file of a run, put together from its parts, and the cache of these parts.

One file: template, styles, scripts and data, with a policy that names the one script and the one style sheet by their
hashes and lets nothing else run or load. Names in traces are untrusted: the data is base64, which cannot close an
element, and the page shows names as text only. Standard library only: a cached page needs no analysis.
"""

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.document.cache import KeptPlace, kept_place
from stepscope.trace.cache_place import content_key
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

    #: packed, as base64
    data: str
    title: str
    #: for who runs no scripts
    in_words: str


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
    return files(__package__).joinpath(name).read_text(encoding="utf-8").strip() + "\n"


@cache
def _script(names: tuple[str, ...]) -> str:
    parts = "\n".join(_source(f"js/{name}.js") for name in names)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@dataclass(frozen=True)
class KeptPage:
    """The page of a run."""

    #: of the run
    name: str
    #: a rank could not be read
    is_partial: bool
    parts: PageParts

    @property
    def html(self) -> str:
        """Return the text of the page."""
        return page_from(self.parts)


def page_place(
    given: Sequence[str], *, options: Mapping[str, Any], calibration: str | None, cache_folder: Path | None
) -> KeptPlace | None:
    """Return the cache file of a run's page, None if there is no run; `calibration` is a file named for it."""
    place = kept_place(given, ending="page", options=options, cache_folder=cache_folder)
    if place is None:
        return None
    used = [Path(calibration)] if calibration else [folder / "calibration.json" for folder in place.folders]
    measured = {str(path): content_key(path) for path in used}
    return KeptPlace(place.path, place.given, {**options, "calibration": measured})


def found_page(place: KeptPlace | None) -> KeptPage | None:
    """Return the cached page, None if there is none."""
    kept = place.found() if place else None
    if kept is None:
        return None
    return KeptPage(kept["name"], kept["is_partial"], PageParts(**kept["parts"]))


def keep_page(place: KeptPlace | None, page: KeptPage, *, key: dict[str, Any] | None, raw_bytes: int) -> None:
    """Cache a page."""
    if place is not None:
        place.keep(vars(page) | {"parts": vars(page.parts)}, key=key, raw_bytes=raw_bytes)
