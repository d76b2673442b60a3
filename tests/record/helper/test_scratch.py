"""Only folders that carry our marker, belong to us and have no living owner are ever removed.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.record.helper.scratch import MARKER, make_scratch, remove_scratch, sweep_scratch

OWNER = """
import sys, time
from stepscope.record.helper.scratch import make_scratch
print(make_scratch(sys.argv[1]), flush=True)
time.sleep(600)
"""


def owner_of_one(parent: Path) -> tuple["subprocess.Popen[str]", Path]:
    """Return a process that owns a scratch folder below `parent`, and that folder."""
    command = [sys.executable, "-c", OWNER, str(parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize(
    "name",
    ["stepscope-20241115-results", "stepscope-12345678901234567890-x", "stepscope-1-a", "stepscope-", "stepscope-x"],
)
def test_T33_folders_of_the_user_are_never_touched(name: str, tmp_path: Path) -> None:
    theirs = tmp_path / name
    theirs.mkdir()
    (theirs / "results.csv").write_text("1,2\n")
    (tmp_path / "stepscope-7-file").write_text("not even a folder")
    remove_scratch(make_scratch(str(tmp_path)))
    remove_scratch(theirs)
    assert (theirs / "results.csv").read_text() == "1,2\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({name, "stepscope-7-file"})


def test_T33_a_marker_that_is_not_ours_protects_its_folder(tmp_path: Path) -> None:
    real = make_scratch(str(tmp_path))
    marker = (real / MARKER).read_bytes()
    for name, make in (
        ("stepscope-empty", lambda path: path.touch()),
        ("stepscope-link", lambda path: path.symlink_to(real / MARKER)),
        ("stepscope-pipe", lambda path: os.mkfifo(path)),
        ("stepscope-folder", lambda path: path.mkdir()),
    ):
        (tmp_path / name).mkdir()
        make(tmp_path / name / MARKER)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / MARKER).write_bytes(marker)
    (tmp_path / "stepscope-linked").symlink_to(tmp_path / "elsewhere")
    assert sweep_scratch(tmp_path) == []
    assert (tmp_path / "elsewhere" / MARKER).exists()
    remove_scratch(real)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_T33_a_folder_of_another_user_is_kept(tmp_path: Path) -> None:
    process, folder = owner_of_one(tmp_path)
    process.kill()
    process.wait()
    os.chown(folder, 12345, 12345)
    assert sweep_scratch(tmp_path) == []
    os.chown(folder, 0, 0)
    assert sweep_scratch(tmp_path) == [folder.name]


def test_T8_scratch_of_a_killed_job_is_swept_and_of_a_living_one_kept(tmp_path: Path) -> None:
    process, folder = owner_of_one(tmp_path)
    (folder / "window0.json.tmp").touch()
    mine = make_scratch(str(tmp_path))
    assert folder.is_dir()  # by its lock alone: nothing in its name says who lives
    process.send_signal(signal.SIGKILL)
    process.wait()
    later = make_scratch(str(tmp_path))
    assert not folder.exists() and mine.is_dir()
    for path in (mine, later):
        remove_scratch(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.job
def test_T33_record_runs_beside_them_and_without_a_temporary_folder(tmp_path: Path) -> None:
    theirs = tmp_path / "tmp" / "stepscope-12345678901234567890-mine"
    theirs.mkdir(parents=True)
    command = [sys.executable, "-m", "stepscope.cli.main", "record", "--", sys.executable, "-c", "print('ran')"]
    for folder in (tmp_path / "tmp", tmp_path / "none"):
        environ = {**os.environ, "TMPDIR": str(folder)}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert theirs.is_dir() and [p.name for p in (tmp_path / "tmp").iterdir()] == [theirs.name]
