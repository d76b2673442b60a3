"""The page of an unchanged run: its parts are kept, and put together anew each time.

What is kept is data and text, never a script: whatever somebody put in its place is shown as any trace would be.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.document.cache import KeptPlace, kept_place
from stepscope.report.html.page import PageParts, page_from
from stepscope.trace.cache_place import content_key

_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


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
    """Return where the page of a run lies, None where there is no run; `calibration` is a file named for it."""
    place = kept_place(given, ending="page", options=options, cache_folder=cache_folder)
    if place is None:
        return None
    used = [Path(calibration)] if calibration else [folder / "calibration.json" for folder in place.folders]
    measured = {str(path): content_key(path) for path in used}
    return KeptPlace(place.path, place.given, {**options, "calibration": measured})


def found_page(place: KeptPlace | None) -> KeptPage | None:
    """Return the page that was kept, None where there is none of exactly this run."""
    kept = place.found() if place else None
    if kept is None:
        return None
    name, is_partial, texts = kept.get("name"), kept.get("is_partial"), kept.get("parts")
    if not isinstance(name, str) or not isinstance(is_partial, bool) or not isinstance(texts, list) or len(texts) != 3:
        return None
    if not all(isinstance(text, str) for text in texts) or not _BASE64.fullmatch(texts[0]):
        return None
    return KeptPage(name, is_partial, PageParts(*texts))


def keep_page(place: KeptPlace | None, page: KeptPage, *, key: dict[str, Any] | None, raw_bytes: int) -> None:
    """Write a page where it is to be kept."""
    if place is not None:
        parts = [page.parts.data, page.parts.title, page.parts.in_words]
        place.keep({"name": page.name, "is_partial": page.is_partial, "parts": parts}, key=key, raw_bytes=raw_bytes)
