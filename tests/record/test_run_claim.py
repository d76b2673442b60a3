"""A run folder belongs to one run: claims, siblings, leftovers, the commit of its script.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.record.memory_store import MemoryStore

from stepscope.record.config import Place, RecordConfig
from stepscope.record.helper.claim import claim_folder
from stepscope.record.helper.handover import source_commit
from stepscope.record.helper.open_run import agree_on_folder
from stepscope.record.helper.side_channel import SideChannel
from stepscope.record.window.trace_file import sweep, temporary_for


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


@pytest.mark.slow
def test_answer_from_before_an_elastic_restart_is_not_taken(tmp_path: Path) -> None:
    config = RecordConfig(out=str(tmp_path / "run"), other_ranks_wait_s=0.2)
    channel = SideChannel(MemoryStore())
    old = agree(config, 0, channel, started_ns=10**18)
    assert agree(config, 1, channel, started_ns=10**18 + 3_600 * 10**9)["folder"] != old["folder"]


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


A, B = "a" * 40, "b" * 64


def repository(folder: Path, head: str, **refs: str) -> Path:
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    for name, commit in refs.items():
        (git / "refs" / "heads").mkdir(parents=True, exist_ok=True)
        (git / "refs" / "heads" / name).write_text(commit + "\n")
    return folder


def test_packed_branch_and_worktree(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", "ref: refs/heads/gone\n")
    (main / ".git" / "packed-refs").write_text(f"# pack-refs\n{A} refs/heads/gone\n{B} refs/heads/work\n")
    assert source_commit({}, str(main / "train.py")) == A
    own = main / ".git" / "worktrees" / "w"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/work\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text(f"gitdir: {own}\n")
    assert source_commit({}, str(tmp_path / "w" / "train.py")) == B
