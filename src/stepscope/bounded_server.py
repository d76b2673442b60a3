"""A small HTTP server with a bound on its connections: a few threads at most; who comes beyond that is hung up on.

Both sides serve something while another program runs: metrics next to the job, pages next to a reader. A client that
connects and says nothing must not cost more than its thread for a few seconds, and many of them not more than a few
threads. Standard library only.
"""

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepscope.errors import debugging

LOOPBACK = "127.0.0.1"


class BoundedServer(ThreadingHTTPServer):
    """Answers each connection on a separate thread, with a limit on their number; ignores clients that fail."""

    daemon_threads = True
    block_on_close = False

    max_connections = 8
    #: a request must be complete by then, however slowly it is sent
    within_s = 10.0

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(self.max_connections)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread, or close it where too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients must not be able to write to the terminal."""
        if debugging():
            super().handle_error(request, client_address)


class BoundedHandler(BaseHTTPRequestHandler):
    """One request, one answer, then the connection ends; a request that is not complete in time is cut off."""

    server: BoundedServer

    def setup(self) -> None:
        """Start the deadline of the request."""
        self._deadline = threading.Timer(self.server.within_s, self._cut)
        self._deadline.daemon = True
        self._deadline.start()
        super().setup()
        self.connection.settimeout(self.server.within_s)

    def finish(self) -> None:
        """End the connection and its deadline."""
        self._deadline.cancel()
        super().finish()

    def parse_request(self) -> bool:
        """Return whether there is a request to answer; its deadline no longer holds."""
        parsed = super().parse_request()
        self._deadline.cancel()
        return parsed

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""

    def _cut(self) -> None:
        with suppress(OSError):  # the connection has ended
            self.connection.shutdown(socket.SHUT_RDWR)
