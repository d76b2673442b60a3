"""An out-of-memory error of the job: it sees its own error, and a snapshot of that moment is in the run folder.

The allocator is a stand-in with the published format of snapshots; `tests/record/test_gpu.py` has the real one.
"""

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from tests.record.memory.test_memory import Memory
from tests.record.script_runs import SCRIPTS, recorded, started

from stepscope.cli.main import main
from stepscope.record.memory import MemoryHistory

SNAPSHOT = Path(__file__).parents[2] / "data" / "memory_snapshot" / "snapshot.pickle.gz"
REQUESTED = 512 << 20


@pytest.mark.job
@pytest.mark.parametrize(("fails_at", "way"), [(0, "raised"), (2, "raised"), (2, "caught"), (2, "broken")])
def test_job_sees_its_own_error_and_the_folder_has_the_snapshot(tmp_path, capsys, fails_at, way):
    command = [sys.executable, str(SCRIPTS / "runs_out_of_memory.py"), str(SNAPSHOT), str(fails_at), way]
    (tmp_path / "plain").mkdir()
    alone, done = started(command, tmp_path / "plain"), recorded(tmp_path, command, "--memory", "--light")
    assert done.returncode == alone.returncode == (0 if way == "caught" else 1)
    errors = [
        [line for line in x.stderr.splitlines() if "OutOfMemoryError" in line and not line.startswith("stepscope: ")]
        for x in (done, alone)
    ]
    assert errors[0] == errors[1], done.stderr
    written = tmp_path / "run" / "rank00000.oom.memory.pickle"
    assert written.exists() == (way != "broken")
    if way == "broken":
        assert "no snapshot today" in done.stderr
        return
    assert main(["memory", str(tmp_path / "run"), "--json", "-"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["snapshots"]
    error = found["out_of_memory"]
    assert (error["requested_bytes"], error["device_free_bytes"], error["limit_bytes"]) == (REQUESTED, 1 << 20, 1 << 30)
    assert error["module"] == "0"
    assert error["place"].endswith("runs_out_of_memory.py:39 (forward)"), "the call itself, not the first frame around"
    assert error["purpose"] == "activations"
    assert error["allocated_bytes"] + error["requested_bytes"] > error["reachable_bytes"]
    assert {row["change"]: row["fits"] for row in error["fits"]}["zero=1"] is None, "no data parallelism was seen"


@pytest.fixture
def observers(monkeypatch):
    found: list = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: False, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", found.append, raising=False)
    return found


def test_a_search_for_a_batch_size_writes_a_few_snapshots_and_the_last_stays(tmp_path, observers):
    history, written = MemoryHistory(memory=Memory()), []

    def hand_over(write):
        write(tmp_path, 3)
        written.append(pickle.loads((tmp_path / "rank00003.oom.memory.pickle").read_bytes())["out_of_memory"])

    history.on_open(hand_over)
    for k in range(9):
        observers[0](0, k + 1, 100, 10)
    assert [one["requested_bytes"] for one in written] == [1, 2, 3]
    assert not history.has_unsaved


def test_history_of_the_job_replaces_ours_and_stays_on(tmp_path, observers, capsys):
    memory = Memory()
    history = MemoryHistory(memory=memory)
    assert memory.calls[0]["enabled"] == "all"
    memory._record_memory_history(enabled="state", max_entries=5)
    history.on_window_start()
    history.on_window_end()
    history.on_close(tmp_path, 0)
    assert memory.calls[1:] == [{"enabled": "state", "max_entries": 5}], "neither cleared nor switched off"
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("its own memory history") == 1
