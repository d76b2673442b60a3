"""`stepscope view`: prints its address, answers there, and ends with Ctrl-C and nothing left behind."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.cli.main import main


@pytest.fixture
def viewed(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Return the running command and the address it printed."""
    command = [
        sys.executable, "-m", "stepscope.cli.main", "view", str(folder), *["--no-browser", "--no-cache", "--port", "0"],
    ]  # fmt: skip
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stdout is not None
    line = job.stdout.readline()
    assert " is at http://127.0.0.1:" in line, line or (job.stderr.read() if job.stderr else "")
    yield job, line.split()[-1]
    if job.poll() is None:
        job.kill()
    job.communicate()


def got(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=HANG_S) as answer:
        return bytes(answer.read())


@pytest.mark.slow
def test_address_answers_until_ctrl_c(viewed: tuple[subprocess.Popen[str], str]) -> None:
    job, url = viewed
    assert b"<h1>job" in got(url)
    assert b"stepscope" in got(url + "report.html")
    names = [table["name"] for table in json.loads(got(url + "tables.json"))["tables"]]
    assert {"events", "collectives", "findings"} <= set(names)
    assert all(json.loads(got(f"{url}tables/{name}.json?limit=3"))["columns"] for name in names)
    assert len(got(url + "timeline")) > 100
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=HANG_S)
    assert (job.returncode, said) == (0, "")


def test_token_stays_off_the_browsers_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    pages: list[str] = []

    def open_(address: str) -> None:
        opened.append(address)
        place = Path(address.removeprefix("file://"))
        pages.append(place.read_text())
        assert place.parent.stat().st_mode & 0o077 == 0

    monkeypatch.setattr("webbrowser.open", open_)
    monkeypatch.setattr("stepscope.cli.view._wait_until_stopped", lambda: None)
    assert main(["view", str(folder), "--no-cache", "--port", "0"]) == 0
    (address,), (page,) = opened, pages
    token = page.split("127.0.0.1:")[1].split("/")[1]
    assert len(token) >= 32
    assert token not in address
    assert not Path(address.removeprefix("file://")).exists()
