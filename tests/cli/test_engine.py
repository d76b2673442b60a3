"""`--engine dask://`: the same JSON to the byte from a real cluster of two workers, one of them killed on the way."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.run.dask import read_on_cluster

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


@pytest.mark.job
@pytest.mark.slow
def test_same_bytes_of_a_run_with_few_ranks_in_full(
    cluster: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are read and outlined on the workers; a relative path is named as it was given."""
    monkeypatch.chdir(run.parent)
    words = ["report", run.name, "--no-cache", "--full-ranks", "3"]
    assert main([*words, "--json", str(tmp_path / "here.json")]) == 0
    monkeypatch.setattr("stepscope.analyze.sampled._outlined_here", lambda *_, **__: pytest.fail("read here"))
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    assert main([*words, "--engine", engine, "--json", str(tmp_path / "there.json")]) == 0
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    assert json.loads((tmp_path / "there.json").read_text())["run"]["ranks_in_full"]
