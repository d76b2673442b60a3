"""What runs beside the training thread, or keeps it from running, is named in the report of an unchanged job."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.record.script_runs import environment

from stepscope.cli.main import main

JOB = Path(__file__).parent / "beside_job.py"

pytestmark = pytest.mark.job


def line_of(name: str) -> int:
    """Return the line of the job that is marked `# LINE name`."""
    return next(n for n, text in enumerate(JOB.read_text().splitlines(), 1) if text.endswith(f"# LINE {name}"))


def report(folder: Path, fault: str, steps: int, *options: str, core: int | None = None) -> dict[str, Any]:
    """Record the job with a fault, on one core where that is given, and return its report."""
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(folder / "run"), *options, "--"]
    pinned = ["taskset", "-c", str(core)] if core is not None else []
    command = [*pinned, *record, sys.executable, "-W", "ignore", str(JOB), fault, str(steps)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert main(["report", str(folder / "run"), "--json", str(folder / "report.json")]) == 0
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@contextmanager
def busy(core: int) -> Iterator[None]:
    with subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_core_that_other_programs_use_is_no_stall_of_the_host(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with ExitStack() as programs:
        for _ in range(2):
            programs.enter_context(busy(core))
        found = report(tmp_path, "none", 120, core=core)
    first = found["findings"][0]
    assert (first["id"], first["title"]) == ("host-stall", "Training waits for a CPU core")
    assert first["saving_pct"] > 30  # two programs of three on that core: up to 67
    assert "pinned" in first["remedy"]
    assert not [f for f in found["findings"] if "gc.freeze" in f["remedy"] and f["saving_pct"] > 10]
    step = found["step"]
    assert step["core_wait_ms"] == pytest.approx(first["cost_ms_per_step"], rel=0.01)
