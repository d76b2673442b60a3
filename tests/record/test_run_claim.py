"""A run folder belongs to one run: claims, siblings, leftovers.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.record.memory_store import MemoryStore

from stepscope.errors import UsageError
from stepscope.record.config import RecordConfig
from stepscope.record.helper.claim import claim_folder, folders_of_launch
from stepscope.record.helper.open_run import agree_on_folder, id_without_store
from stepscope.record.helper.side_channel import SideChannel
from stepscope.record.rank import Place
from stepscope.record.window.trace_file import sweep, temporary_for


def test_second_run_gets_a_sibling(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    assert claim_folder(out, run_id="a") == out
    assert claim_folder(out, run_id="b") == out.with_name("run-2")
    assert claim_folder(out, run_id="a") == out  # another rank of the first run


def test_folder_of_somebody_else_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank00000.pt.trace.json.gz").touch()
    assert claim_folder(tmp_path / "run", run_id="a").name == "run-2"


def test_empty_folder_made_by_the_user_is_used(tmp_path: Path) -> None:
    assert claim_folder(tmp_path, run_id="a") == tmp_path


def test_many_claim_at_once_and_each_gets_one(tmp_path: Path) -> None:
    found: list[Path] = []
    claims = [
        threading.Thread(target=lambda i=i: found.append(claim_folder(tmp_path / "run", run_id=str(i // 2))))
        for i in range(16)
    ]
    for c in claims:
        c.start()
    for c in claims:
        c.join()
    assert len(found) == 16 and len(set(found)) == 8


def test_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--out"):
        claim_folder(tmp_path / "file" / "run", run_id="a")


def test_launcher_finds_the_runs_it_started(tmp_path: Path) -> None:
    claim_folder(tmp_path / "run", run_id="old", launch_id="before")
    claim_folder(tmp_path / "run", run_id="a", launch_id="now")
    claim_folder(tmp_path / "run", run_id="b", launch_id="now")
    assert [f.name for f in folders_of_launch(tmp_path / "run", "now")] == ["run-2", "run-3"]


def agree(
    config: RecordConfig, rank: int, channel: SideChannel | None, *, started_ns: int = 10**18, number: int = 0
) -> dict[str, str]:
    def claim(run_id: str) -> dict[str, str]:
        return {"folder": str(claim_folder(config.out, run_id=run_id))}

    place = Place(rank, 2, None, "test")
    return agree_on_folder(config, place, channel=channel, claim=claim, started_ns=started_ns, number=number)


def test_ranks_agree_over_the_store(tmp_path: Path) -> None:
    config = RecordConfig(out=str(tmp_path / "run"), other_ranks_wait_s=5)
    channel = SideChannel(MemoryStore())
    assert agree(config, 0, channel)["folder"] == agree(config, 1, channel)["folder"]


def test_second_run_of_a_process_does_not_take_the_first_ones_folder(tmp_path: Path) -> None:
    config = RecordConfig(out=str(tmp_path / "run"), other_ranks_wait_s=5)
    channel = SideChannel(MemoryStore())
    first = agree(config, 0, channel)["folder"]
    second = agree(config, 0, channel, number=1)["folder"]
    assert agree(config, 1, channel, number=1)["folder"] == second != first


@pytest.mark.slow
def test_answer_from_before_an_elastic_restart_is_not_taken(tmp_path: Path) -> None:
    config = RecordConfig(out=str(tmp_path / "run"), other_ranks_wait_s=0.2)
    channel = SideChannel(MemoryStore())
    old = agree(config, 0, channel, started_ns=10**18)
    assert agree(config, 1, channel, started_ns=10**18 + 3_600 * 10**9)["folder"] != old["folder"]


def test_ranks_without_a_store_agree_by_the_job_they_are_in(tmp_path: Path) -> None:
    config = RecordConfig(out=str(tmp_path / "run"), run_id="launch")
    assert agree(config, 0, None)["folder"] == agree(config, 1, None)["folder"]
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
    assert id_without_store(config, slurm) == id_without_store(RecordConfig(), slurm)
    assert id_without_store(config, slurm) != id_without_store(config, {**slurm, "TORCHELASTIC_RESTART_COUNT": "1"})


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_T8_leftovers_of_a_killed_writer_are_swept_and_others_kept(tmp_path: Path) -> None:
    mine = temporary_for(tmp_path / "rank00000.pt.trace.json.gz")
    dead = mine.with_name(mine.name.replace(f"-{os.getpid()}.", f"-{dead_pid()}."))
    users = tmp_path / "notes.tmp"
    for path in (mine, dead, users):
        path.touch()
    assert sweep(tmp_path) == [dead.name]
    assert mine.exists() and users.exists()


def test_T8_leftover_of_a_writer_that_lives_elsewhere_is_kept(tmp_path: Path) -> None:
    mine = temporary_for(tmp_path / "run.json")
    elsewhere = mine.with_name(mine.name.replace(f"-{os.getpid()}.", f"-{dead_pid()}."))  # its number is not ours
    impossible = mine.with_name(mine.name.replace(f"-{os.getpid()}.", "-12345678901234567890."))
    impossible.touch()
    with elsewhere.open("wb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert sweep(tmp_path) == []
    assert sweep(tmp_path) == [elsewhere.name]
    assert impossible.exists()


def test_T22_odd_host_names_make_plain_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "wéird/host.name-7\n$(x)")
    name = temporary_for(tmp_path / "run.json").name
    assert "/" not in name and "\n" not in name and temporary_for(tmp_path / "run.json").parent == tmp_path
    (tmp_path / name.replace(f"-{os.getpid()}.", f"-{dead_pid()}.")).touch()
    assert len(sweep(tmp_path)) == 1
    json.dumps(name)
