"""Outside the window recording takes below 0.5 % of a step. `benchmarks/overhead.py` measures it in full.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANK = Path(__file__).parents[2] / "benchmarks" / "overhead.py"


@pytest.mark.job
def test_T26_light_mode_costs_less_than_a_step_that_does_next_to_nothing(tmp_path):
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    packages = Path(spec.origin).parents[1]
    (tmp_path / "stepscope").symlink_to(packages)  # as in a checkout of that name: torch's calls are not ours
    command = [sys.executable, "-W", "ignore", str(RANK), "warm", "--rank", "0", "--folder", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "stepscope")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # What a step calls of ours, where it is only timed, and over all steps: on a loaded machine more are followed.
    assert 20 < found["calls_of_timed_step"] < 100
    assert found["calls_per_step"] < 400
    # CPU time of a step that does next to nothing, with light mode and without, on the same machine.
    assert found["on_us"] < 2 * found["off_us"]
