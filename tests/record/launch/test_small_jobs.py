"""What a recorded job prints: its own warnings, processes without ranks, a watch from its start."""

import subprocess
import sys

import pytest
from tests.limits import HANG_S
from tests.record.script_runs import TRAIN, environment, recorded, started

from stepscope.cli.main import main

pytestmark = pytest.mark.job

WARNS = f"""
{TRAIN}
import warnings
train(20, lambda step: warnings.warn("of the job"))
"""


def test_a_warning_of_the_job_is_printed_as_often_as_without_us(tmp_path):
    (tmp_path / "job.py").write_text(WARNS)
    command = [sys.executable, "job.py"]
    plain, done = started(command, tmp_path), recorded(tmp_path, command)
    assert plain.stderr.count("UserWarning") == done.stderr.count("UserWarning") == 1
    assert [line for line in done.stderr.splitlines() if not line.startswith("stepscope:")] == plain.stderr.splitlines()


AT_ONCE = f"""
{TRAIN}
import torch.multiprocessing as mp
processes = [mp.get_context("fork").Process(target=train, args=(10,)) for _ in range(2)]
for process in processes: process.start()
for process in processes: process.join()
"""


def test_processes_without_ranks_are_runs_and_that_is_said(tmp_path):
    (tmp_path / "job.py").write_text(AT_ONCE)
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--light", "--out", "run", "--"]
    watch = [sys.executable, "-m", "stepscope.cli.main", "watch", "run", "--once"]
    with subprocess.Popen(
        [*record, sys.executable, "job.py"], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as job:
        watched = subprocess.run(watch, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG_S)
        said = job.communicate(timeout=HANG_S)[1]
    assert watched.returncode == 0, watched.stderr
    assert "2 processes trained and had no rank, so each is a separate run" in said, said


def test_a_folder_that_nothing_is_recorded_in_is_said_at_once(tmp_path):
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert main(["trigger", str(tmp_path / "none")]) == 2
