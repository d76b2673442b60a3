"""Runs that lie elsewhere (memory, web server, S3) and `--engine dask://`: the same bytes."""

import functools
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.run.dask import read_on_cluster

fsspec = pytest.importorskip("fsspec")
TRACES = Path(__file__).parents[1] / "data" / "gloo-linear"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("local") / "report.json"
    assert main(["report", str(TRACES), "--json", str(out), "--no-cache"]) == 0
    return json.loads(out.read_text())


@pytest.fixture
def bucket() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    for path in TRACES.iterdir():
        fs.pipe(f"/bucket/{TRACES.name}/{path.name}", path.read_bytes())
    yield fs
    fs.rm("/bucket", recursive=True)


def same_but_sources(found: dict[str, Any], expected: dict[str, Any], root: str) -> bool:
    """Return whether two reports are one, with the files of the first below `root`."""
    names = [Path(source).name for source in expected["run"]["sources"]]
    assert found["run"]["sources"] == [f"{root}/{name}" for name in names]
    return {**found, "run": {**found["run"], "sources": None}} == {
        **expected,
        "run": {**expected["run"], "sources": None},
    }


def test_report_is_the_same_and_goes_back_to_the_bucket(bucket: Any, local: dict[str, Any], capsys: Any) -> None:
    address = f"memory://bucket/{TRACES.name}"
    assert main(["report", address, "--json", "memory://bucket/out.json", "--html", "memory://bucket/out.html"]) == 0
    assert same_but_sources(json.loads(bucket.cat("/bucket/out.json")), local, address)
    assert bucket.cat("/bucket/out.html").startswith(b"<!")
    printed = capsys.readouterr().out
    assert address in printed and "stepscope-remote" not in printed
    assert main(["report", address, "--json", "memory://bucket/out.json"]) == 2
    assert "already exists; use --force" in capsys.readouterr().err
    assert not bucket.exists(f"/bucket/{TRACES.name}/.stepscope")


def test_other_commands_take_addresses_too(bucket: Any, capsys: Any) -> None:
    address = f"memory://bucket/{TRACES.name}"
    assert main(["compare", address, str(TRACES), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["investigate", address]) == 2
    assert "takes no address" in capsys.readouterr().err


def test_errors_name_the_address(bucket: Any, capsys: Any) -> None:
    bucket.pipe("/bucket/bad/rank0.trace.json", b"no trace")
    assert main(["report", "memory://bucket/bad"]) == 2
    said = capsys.readouterr().err
    assert "memory://bucket/bad" in said and "stepscope-remote" not in said and said.count("\n") == 1
    assert main(["report", "memory://bucket/none"]) == 2
    assert "memory://bucket/none does not exist" in capsys.readouterr().err


@pytest.fixture
def web() -> Iterator[str]:
    pytest.importorskip("aiohttp")
    handler = functools.partial(_Quiet, directory=str(TRACES.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_report_from_a_web_server_is_the_same(web: str, local: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.json"
    assert main(["report", f"{web}/{TRACES.name}/", "--json", str(out)]) == 0
    assert same_but_sources(json.loads(out.read_text()), local, f"{web}/{TRACES.name}")
    assert main(["report", f"{web}/none/"]) == 2
    assert f"{web}/none/ does not exist" in capsys.readouterr().err


class _Redirects(SimpleHTTPRequestHandler):
    target, asked = "", 0

    def do_GET(self) -> None:
        if self.path.startswith("/moved/"):
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            return
        self.send_response(302)
        self.send_header("Location", type(self).target)
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""


class _Other(_Redirects):
    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_error(500)

    do_HEAD = do_GET


@pytest.mark.parametrize("path", ["rank0.json", "run/"])
def test_redirect_to_another_server_is_refused(path: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("no_proxy", "*")
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (_Redirects, _Other)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    one, other = (f"127.0.0.1:{server.server_port}" for server in servers)
    try:
        _Redirects.target, _Other.asked = f"http://{other}/internal?key=1", 0
        assert main(["report", f"http://me:secret@{one}/{path}"]) == 2
        said = capsys.readouterr().err
        assert f"redirects to another server, http://{other}/internal;" in said and said.count("\n") == 1
        assert "secret" not in said and "key" not in said and not _Other.asked
        _Redirects.target = "/moved/x"
        assert main(["report", f"http://{one}/{path}"]) == 2
        assert "redirect" not in capsys.readouterr().err  # the same server may
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


DATA = Path(__file__).parents[1] / "data"
RANKS = 8


def test_wrong_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", str(DATA / "gloo-linear"), "--engine"]
    for more in (["dask://nowhere"], ["dask://h:1", "--no-cache"]):
        assert main([*words, *more]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", host="127.0.0.1", silence_logs=50
    ) as found:
        yield found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a job of eight ranks."""
    folder = tmp_path / "job"
    shutil.copytree(DATA / "dlrm-8ranks", folder)
    return folder


@pytest.mark.job
@pytest.mark.slow
def test_same_bytes_with_a_worker_killed_halfway(cluster: Any, run: Path, tmp_path: Path) -> None:
    assert main(["report", str(run), "--no-cache", "--json", str(tmp_path / "here.json")]) == 0
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    traces = sorted(run.glob("*.json*"))
    pids = [worker.pid for worker in cluster.workers.values()]
    done: list[int] = []

    def kill_one(number: int, of: int) -> None:
        done.append(number)
        if number == 2:
            os.kill(pids[0], signal.SIGKILL)

    outcomes = read_on_cluster(engine, traces, progress=kill_one)
    assert len(traces) == RANKS and done == list(range(1, RANKS + 1))
    assert [Path(outcome.path).name for outcome in outcomes] == [path.name for path in traces]
    assert all(outcome.problem is None and outcome.events for outcome in outcomes)
    assert len(list((run / ".stepscope").glob("*.columns"))) == RANKS
    assert main(["report", str(run), "--engine", engine, "--json", str(tmp_path / "there.json")]) == 0
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
