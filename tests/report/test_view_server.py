"""The local server: who may ask, and what comes back."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.limits import HANG_S

from stepscope.document.rows import TABLES, Column, TableSchema
from stepscope.errors import InputError
from stepscope.report.view.server import LocalServer, folder_site, local_server
from stepscope.report.view.site import MAX_ROWS, ViewSite
from stepscope.tables.table import Table, known, table_of

HOSTILE = "</script><script>window.ran = 1</script>"


SCHEMA = TableSchema(
    "steps", "", (Column("step", "int64", "number", "its number"), Column("what", "text", "", "", null=True))
)


class SomeTables:
    """2,500 rows, every third text unknown."""

    def table(self, name: str) -> Table:
        place = np.arange(2500)
        return table_of(SCHEMA, {"step": place, "what": known(place % 2, place % 3 > 0, texts=("a", HOSTILE))})


def no_timeline() -> bytes:
    raise InputError("the timeline cannot be made: there are no steps")


@pytest.fixture
def serve() -> Iterator[Callable[..., LocalServer]]:
    started: list[LocalServer] = []

    def start(site: Any = None, **options: Any) -> LocalServer:
        pages = site or ViewSite(name="run", report_html="<p>hi", tables=SomeTables(), timeline=lambda: b"\x0a\x00")
        server = local_server(pages, **options)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def asked(server: LocalServer, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of one request, sent as it is: no client tidies the path."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in {"Host": server.names[0], **headers}.items())]
    return sent(server, "\r\n".join([*lines, "", ""]).encode())


def sent(server: LocalServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_S) as connection:
        connection.sendall(request)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def test_owner_gets_page_report_tables_and_timeline(serve):
    server = serve()
    base = f"/{server.token}/"
    for path, kind, part in (
        ("", "text/html; charset=utf-8", b"report.html"),
        ("report.html", "text/html; charset=utf-8", b"<p>hi"),
        ("tables.json", "application/json; charset=utf-8", b'"steps"'),
        ("timeline", "application/octet-stream", b"\x0a\x00"),
    ):
        status, headers, body = asked(server, base + path)
        assert (status, headers["Content-Type"], part in body) == (200, kind, True)
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert asked(server, base, method="HEAD")[::2] == (200, b"")
    assert asked(server, base, Host=f"localhost:{server.server_port}")[0] == 200
    assert asked(server, base, Origin=server.origin)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", ""])
def test_foreign_host_is_misdirected(serve, host):
    server = serve()
    assert asked(server, f"/{server.token}/", Host=host.format(port=server.server_port))[0] == 421


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://{own}"])
def test_foreign_origin_is_forbidden(serve, origin):
    server = serve()
    assert asked(server, f"/{server.token}/tables.json", Origin=origin.format(own=server.names[0]))[0] == 403


def test_nothing_is_there_without_the_token(serve):
    server = serve()
    for path in (
        "/",
        "/report.html",
        "/tables.json",
        f"/{server.token}",
        f"/{server.token}x/",
        "/?token=" + server.token,
    ):
        assert asked(server, path)[::2] == (404, b"Not Found\n")
    assert serve().token != server.token
    assert len(server.token) >= 32


TRAVERSALS = (
    "../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "a/../../secret.txt", "..\\secret.txt", "/etc/passwd",
    "//etc/passwd", "%2F%2Fetc/passwd", "/%2F%2Fetc%2Fpasswd", "a/%00", "a", "", ".", "nothing.txt", "%252e%252e%2fetc",
    "..%c0%afetc/passwd", "....//etc/passwd", "..;/secret.txt", "file:///etc/passwd", "~/", "C:%5C", "%2e%2e%5c" * 9,
)  # fmt: skip


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out_of_the_folder(serve, tmp_path, path):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "ui" / "a").mkdir(parents=True)
    server = serve(folder_site(tmp_path / "ui"))
    for prefix in ("/", f"/{server.token}/"):
        assert asked(server, prefix + path)[::2] == (404, b"Not Found\n")
    assert asked(serve(), f"/{path}")[0] == 404


def test_links_lead_nowhere(serve, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file.txt").write_text("secret")
    (ui := tmp_path / "ui").mkdir()
    (ui / "file.js").write_text("1")
    (ui / "link.txt").symlink_to(tmp_path / "secret" / "file.txt")
    (ui / "folder").symlink_to(tmp_path / "secret")
    server = serve(folder_site(ui))
    base = f"/{server.token}/"
    assert asked(server, f"{base}file.js")[0] == 200
    assert asked(server, "/file.js")[0] == 404
    assert [asked(server, base + path)[0] for path in ("link.txt", "folder/file.txt")] == [404, 404]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
def test_only_reading_is_allowed(serve, method):
    server = serve()
    status, headers, _ = asked(server, f"/{server.token}/", method=method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_taken_port_leads_to_the_next(serve):
    first = serve()
    assert first.server_port < 65535
    second = serve(port=first.server_port)
    assert first.server_port < second.server_port <= first.server_port + 20
    assert asked(second, f"/{second.token}/")[0] == 200


def test_listens_on_loopback_only(serve):
    assert serve().socket.getsockname()[0] == "127.0.0.1"


def test_page_has_a_policy_and_shows_names_as_text(serve):
    server = serve(ViewSite(name=HOSTILE, report_html="", tables=SomeTables(), timeline=no_timeline))
    _, headers, body = asked(server, f"/{server.token}/")
    assert HOSTILE.encode() not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert not re.search(r"unsafe-inline|unsafe-eval|\*", headers["Content-Security-Policy"])


def test_what_cannot_be_made_is_said_in_one_line(serve):
    server = serve(ViewSite(name="run", report_html="", tables=SomeTables(), timeline=no_timeline))
    status, _, body = asked(server, f"/{server.token}/timeline")
    assert (status, body) == (500, b"the timeline cannot be made: there are no steps\n")


def test_tables_come_in_pages(serve):
    server = serve()
    page = f"/{server.token}/tables/steps.json"
    found = json.loads(asked(server, f"{page}?offset=2400&limit=200")[2])
    assert [column["name"] for column in found["columns"]] == ["step", "what"]
    assert (found["offset"], found["total"], len(found["rows"])) == (2400, 2500, 100)
    assert found["rows"][:3] == [[2400, None], [2401, HOSTILE], [2402, "a"]]
    assert len(json.loads(asked(server, f"{page}?limit=99999")[2])["rows"]) == MAX_ROWS
    for odd in ("?offset=-1", "?offset=9e9", "?offset=" + "9" * 40, "?limit=x"):
        assert json.loads(asked(server, page + odd)[2])["rows"][0][0] == 0
    assert json.loads(asked(server, f"{page}?offset=99999")[2])["rows"] == []
    assert asked(server, f"/{server.token}/tables/other.json")[0] == 404
    listed = json.loads(asked(server, f"/{server.token}/tables.json")[2])["tables"]
    assert [one["name"] for one in listed] == list(TABLES)


def test_chosen_rows_come_as_pages_and_as_csv(serve):
    server = serve()
    page = f"/{server.token}/tables/steps"
    found = json.loads(asked(server, f"{page}.json?filter=what=a+step>100&sort=step&down=1&limit=2")[2])
    assert [row[0] for row in found["rows"]] == [2498, 2494] and found["chosen"] < found["total"] == 2500
    status, headers, body = asked(server, f"{page}.csv?filter=step<3")
    assert (status, headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert headers["Content-Disposition"] == 'attachment; filename="steps.csv"'
    assert body.decode().splitlines()[0] == "step,what" and len(body.decode().splitlines()) == 4
    assert len(asked(server, f"{page}.csv")[2].splitlines()) == 2501
    for odd in ("?sort=nothing", "?filter=nothing=1", "?filter=step>x", "?filter=" + "a+" * 400):
        assert asked(server, f"{page}.json{odd}")[0] == 200


def test_timeline_is_made_once(serve):
    made: list[int] = []
    site = ViewSite(name="r", report_html="", tables=SomeTables(), timeline=lambda: made.append(1) or b"x")  # type: ignore[func-returns-value]
    server = serve(site)
    assert [asked(server, f"/{server.token}/timeline")[2] for _ in range(3)] == [b"x"] * 3
    assert made == [1]
