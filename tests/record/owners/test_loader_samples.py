"""Lines of the dataset in forked workers are sampled around the step with frames; losses and spawned workers stay."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S

from stepscope.contract.run_folder import owners_file

JOB = Path(__file__).with_name("loader_job.py")
SOURCE = Path(__file__).parents[3] / "src"
(PLANTED,) = [i for i, line in enumerate(JOB.read_text().splitlines(), 1) if "the planted line" in line]


def printed(command: list[str]) -> list[str]:
    env = {**os.environ, "PYTHONPATH": python_path(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "0x" in line]


@pytest.mark.job
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_dataset_s_line_is_found_in_forked_workers(tmp_path: Path, start: str) -> None:
    job = [sys.executable, str(JOB), start]
    record = [sys.executable, "-m", "stepscope", "record", "--steps", "4:6", "--out", str(tmp_path / "run"), "--"]
    assert printed([*record, *job]) == printed(job)
    owners = json.loads(gzip.decompress((tmp_path / "run" / owners_file(0)).read_bytes()))
    if start == "spawn":
        assert owners["loader"] is None and "loader" in owners["reasons"]
        return
    place, share = owners["loader"][0]
    assert place == f"loader_job.py:{PLANTED}"
    assert share > 0.9
    assert "loader" not in owners["reasons"]
