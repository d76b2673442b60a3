"""A small HTTP server with a bound on its connections: beyond it the longest idle one is closed for a new one.

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
_END_S = 1.0  # for the thread of a connection that was closed


class BoundedServer(ThreadingHTTPServer):
    """Answers each connection on a separate thread, with a limit on their number; ignores clients that fail."""

    daemon_threads = True
    block_on_close = False

    max_connections = 8
    #: a request must be complete by then, however slowly it is sent
    within_s = 10.0

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(self.max_connections)
        self._idle: dict[socket.socket, None] = {}  # those that wait for their client, the longest first
        self._of_idle = threading.Lock()
        super().__init__(address, handler)

    def note_idle(self, connection: socket.socket, *, is_idle: bool) -> None:
        """Note that a connection waits for its client, to send its request or to read the answer, or no longer."""
        with self._of_idle:
            self._idle.pop(connection, None)
            if is_idle:
                self._idle[connection] = None

    def _close_idle(self) -> bool:
        with self._of_idle:
            connection = next(iter(self._idle), None)
            if connection is not None:
                del self._idle[connection]
                with suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)
        return connection is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread, or close it where too many are being answered."""
        if self._free.acquire(blocking=False) or (self._close_idle() and self._free.acquire(timeout=_END_S)):
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
        self.server.note_idle(self.connection, is_idle=True)

    def finish(self) -> None:
        """End the connection and its deadline."""
        self._deadline.cancel()
        self.server.note_idle(self.connection, is_idle=False)
        super().finish()

    def parse_request(self) -> bool:
        """Return whether there is a request to answer; its deadline no longer holds."""
        parsed = super().parse_request()
        self._deadline.cancel()
        self.server.note_idle(self.connection, is_idle=False)
        return parsed

    def end_headers(self) -> None:
        """Send the headers; from here on the client has to read."""
        self.server.note_idle(self.connection, is_idle=True)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""

    def _cut(self) -> None:
        with suppress(OSError):  # the connection has ended
            self.connection.shutdown(socket.SHUT_RDWR)
