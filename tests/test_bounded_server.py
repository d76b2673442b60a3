"""A server with few connections at once: one beyond them is closed, a slow request is cut off."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.limits import HANG_S

from stepscope.bounded_server import LOOPBACK, BoundedHandler, BoundedServer


class Two(BoundedServer):
    max_connections = 2


class Impatient(Two):
    within_s = 0.2


class Patient(Two):
    within_s = 2 * HANG_S


class Waiting(BoundedHandler):
    """Answers once it may."""

    may_answer = threading.Event()
    begun = threading.Semaphore(0)
    size_bytes = 0

    def do_GET(self) -> None:
        self.begun.release()
        assert self.may_answer.wait(HANG_S)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * self.size_bytes)


class Verbose(Waiting):
    size_bytes = 50_000_000  # more than the system buffers


@contextlib.contextmanager
def serving(kind: type[Two], handler: type[Waiting]) -> Iterator[Two]:
    server = kind((LOOPBACK, 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def connected(server: Two, request: bytes = b"GET / HTTP/1.0\r\n\r\n") -> socket.socket:
    client = socket.create_connection((LOOPBACK, server.server_port), timeout=HANG_S)
    client.sendall(request)
    return client


def received(client: socket.socket) -> bytes:
    """Return what was answered, nothing where the server hung up, before or after it had read the request."""
    try:
        return client.recv(100)
    except ConnectionResetError:
        return b""


def wait_for_an_answer(server: Two, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    until, answer = time.monotonic() + HANG_S, b""
    while not answer and time.monotonic() < until:  # a place is free once the thread of one of them has ended
        meanwhile()
        with connected(server) as client:
            answer = received(client)
    assert answer.startswith(b"HTTP/1.0 200")


def test_connection_beyond_the_bound_is_hung_up_on(capfd: pytest.CaptureFixture[str]) -> None:
    Waiting.may_answer.clear()
    with serving(Two, Waiting) as server:
        served = [connected(server) for _ in range(2)]
        for _ in served:  # a connection whose request has not come is idle, and would make room
            assert Waiting.begun.acquire(timeout=HANG_S)
        beyond = connected(server)
        assert received(beyond) == b""  # while the two still wait for their answers
        Waiting.may_answer.set()
        for client in served:
            assert client.recv(100).startswith(b"HTTP/1.0 200")
        for client in (*served, beyond):
            client.close()
        wait_for_an_answer(server)
    assert capfd.readouterr().err == ""


def test_request_that_drips_is_cut_off() -> None:
    Waiting.may_answer.set()
    with serving(Impatient, Waiting) as server:
        dripping = [connected(server, b"GET / HTTP/1.0\r\n") for _ in range(2)]

        def drip() -> None:
            for client in dripping:
                with contextlib.suppress(OSError):
                    client.sendall(b"X: y\r\n")
            time.sleep(0.05)

        wait_for_an_answer(server, meanwhile=drip)
        for client in dripping:
            client.close()


@pytest.mark.slow
@pytest.mark.parametrize("request_", [b"", b"GET / HTTP/1.0\r\n\r\n"], ids=["says nothing", "reads nothing"])
def test_idle_clients_make_room(request_: bytes) -> None:
    Waiting.may_answer.set()
    with serving(Patient, Verbose) as server:
        idle = [connected(server, request_) for _ in range(5)]
        wait_for_an_answer(server)
        for client in idle:
            client.close()
