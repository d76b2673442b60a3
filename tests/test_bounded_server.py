"""A server with few connections at once: one beyond them is closed, a slow request is cut off."""

import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler

import pytest
from tests.limits import HANG_S

from stepscope.bounded_server import LOOPBACK, BoundedHandler, BoundedServer


class Waiting(BaseHTTPRequestHandler):
    """Answers once it may, and says nothing of it."""

    may_answer = threading.Event()

    def do_GET(self) -> None:
        assert self.may_answer.wait(HANG_S)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep no log."""


class Two(BoundedServer):
    max_connections = 2


def connected(server: Two) -> socket.socket:
    client = socket.create_connection((LOOPBACK, server.server_port), timeout=HANG_S)
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    return client


def received(client: socket.socket) -> bytes:
    """Return what was answered, nothing where the server hung up, before or after it had read the request."""
    try:
        return client.recv(100)
    except ConnectionResetError:
        return b""


def test_connection_beyond_the_bound_is_hung_up_on(capfd: pytest.CaptureFixture[str]) -> None:
    server = Two((LOOPBACK, 0), Waiting)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        served = [connected(server) for _ in range(2)]
        beyond = connected(server)
        assert received(beyond) == b""  # while the two still wait for their answers
        Waiting.may_answer.set()
        for client in served:
            assert client.recv(100).startswith(b"HTTP/1.0 200")
        for client in (*served, beyond):
            client.close()
        answer = b""
        while not answer:  # a place is free once the thread of one of them has ended
            with connected(server) as client:
                answer = received(client)
        assert answer.startswith(b"HTTP/1.0 200")
    finally:
        server.shutdown()
        server.server_close()
    assert capfd.readouterr().err == ""


class Greeting(BoundedHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


class Impatient(Two):
    within_s = 0.2


def test_request_that_drips_is_cut_off() -> None:
    server = Impatient((LOOPBACK, 0), Greeting)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    over, answer = threading.Event(), b""
    dripping = [socket.create_connection((LOOPBACK, server.server_port), timeout=HANG_S) for _ in range(2)]

    def drip() -> None:
        begun = False
        while not over.wait(0.05):
            for client in dripping:
                with contextlib.suppress(OSError):
                    client.sendall(b"X: y\r\n" if begun else b"GET / HTTP/1.0\r\n")
            begun = True

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + HANG_S
        while not answer and time.monotonic() < until:
            with connected(server) as client:
                answer = received(client)
        assert answer.startswith(b"HTTP/1.0 200")
    finally:
        over.set()
        thread.join()
        for client in dripping:
            client.close()
        server.shutdown()
        server.server_close()


class Verbose(BoundedHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 50_000_000)  # more than the system buffers


class Patient(Two):
    within_s = 2 * HANG_S


@pytest.mark.parametrize("request_", [b"", b"GET / HTTP/1.0\r\n\r\n"], ids=["says nothing", "reads nothing"])
def test_idle_clients_make_room(request_: bytes) -> None:
    server = Patient((LOOPBACK, 0), Verbose)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    idle = [socket.create_connection((LOOPBACK, server.server_port), timeout=HANG_S) for _ in range(5)]
    try:
        for client in idle:
            client.sendall(request_)
        answer = b""
        while not answer:
            with connected(server) as client:
                answer = received(client)
        assert answer.startswith(b"HTTP/1.0 200")
    finally:
        for client in idle:
            client.close()
        server.shutdown()
        server.server_close()
