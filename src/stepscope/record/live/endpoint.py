"""The endpoint that Prometheus scrapes, in the helper process of each rank: GET /metrics and nothing else.

It is bound to the loopback address unless another is given. Requests are answered on threads of their own, a few at a
time and each within seconds: a scraper that hangs keeps a thread of the helper, and nobody waits for it.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from stepscope.bounded_server import LOOPBACK, BoundedHandler, BoundedServer
from stepscope.errors import UsageError
from stepscope.record.live.prometheus import CONTENT_TYPE

_LOCAL_NAMES = {"localhost", LOOPBACK, "::1"}
_REQUEST_WITHIN_S = 5.0
_MAX_AT_ONCE = 8
_RETRY_S = 1.0
_MAX_TRIES = 120  # the process before an elastic restart may still hold the port


def address_from(text: str) -> tuple[str, int]:
    """Return host and port of `9400`, `:9400` or `0.0.0.0:9400`; a `UsageError` for anything else."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise UsageError(f"--metrics {text!r}: give a port such as 9400, or an address such as 0.0.0.0:9400")
    return host.strip("[]") or LOOPBACK, int(port)


class Endpoint:
    """Serves `text()` from now until the process ends; `url` is None until the port is to be had."""

    def __init__(self, address: str, text: Callable[[], str], *, local_rank: int) -> None:
        self.url: str | None = None
        self.trouble: str | None = None
        host, port = address_from(address)
        self._host, self._port = host, port + local_rank if port else 0
        self._text = text
        self._over = threading.Event()
        self._server: _Server | None = None
        threading.Thread(target=self._serve, name="metrics", daemon=True).start()

    def end(self) -> None:
        """Let go of the port."""
        self._over.set()
        server = self._server
        if server is not None:
            server.shutdown()
            server.server_close()

    def _serve(self) -> None:
        for _ in range(_MAX_TRIES):
            try:
                self._server = _Server(self._host, self._port, self._text)
                break
            except (OSError, OverflowError) as e:
                self.trouble = f"metrics: {self._host}:{self._port}: {getattr(e, 'strerror', None) or e}"
                if self._over.wait(_RETRY_S):
                    return
        if self._server is not None and not self._over.is_set():
            self.trouble = None
            shown = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"
            self._server.serve_forever(poll_interval=0.5)


class _Server(BoundedServer):
    max_connections = _MAX_AT_ONCE
    request_queue_size = 2 * _MAX_AT_ONCE
    within_s = _REQUEST_WITHIN_S

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        self.text = text
        self.local_only = host in _LOCAL_NAMES
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)


class _Handler(BoundedHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.server.local_only and not _is_local(self.headers.get("Host", "")):
            self.send_error(421)  # a page in a browser that calls itself another name
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
        else:
            body = self.server.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.strip("[]") in _LOCAL_NAMES
