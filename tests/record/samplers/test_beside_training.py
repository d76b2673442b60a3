"""What runs beside the training thread, or keeps it from running, is named in the report of an unchanged job."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.limits import HANG_S
from tests.record.script_runs import environment, recorded, started

from stepscope.analysis import load
from stepscope.analyze.thread_time import SampledSteps
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
    return json.loads((folder / "report.json").read_text())


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
        found = report(tmp_path, "none", 70, core=core)
    step = found["step"]
    assert step["starved"] is True
    assert step["core_wait_ms"] > 0.3 * (step["core_wait_ms"] + step["unprofiled_ms"])  # of three programs: up to 67 %
    assert not [f for f in found["findings"] if "CPU core" in f["title"]]
    stalls = [f["saving_alone_ms"] for f in found["findings"] if "gc.freeze" in f["remedy"]]
    assert sum(stalls) < 0.1 * step["core_wait_ms"]  # as well as waits in the few profiled steps are known


def finding(found: dict[str, Any], title: str) -> dict[str, Any] | None:
    """Return what the report says of the planted fault; None where other programs have the cores."""
    titles, step = [f["title"] for f in found["findings"]], found["step"]
    if step["starved"] or (step["core_wait_ms"] or 0.0) > 0.05 * step["profiled_ms"]:
        return None
    assert title in titles, titles
    one: dict[str, Any] = found["findings"][titles.index(title)]
    assert one["id"] == "host-stall"
    return one


def sampled(folder: Path) -> SampledSteps:
    """Return the samples of the job: on a busy machine, too, they show where its threads were."""
    (one,) = load(folder / "run").account.sampled
    return one


def test_a_thread_that_holds_the_gil_is_named_with_its_line(tmp_path: Path) -> None:
    found = report(tmp_path, "hog", 300)
    held = sampled(tmp_path).gil_holder(device_busy=0.0)
    assert held is not None
    holder, _ = held
    assert (holder.thread, holder.file) == ("writer", JOB.name)
    assert holder.line in (line_of("hog"), line_of("hog") - 1)  # its loop has two
    if one := finding(found, f"Another thread holds the GIL ({JOB.name}:{holder.line})"):
        assert "thread writer" in one["cause"]
        assert one["saving_pct"] > 10  # alone on two cores: over 80
        assert not [f for f in found["findings"] if f["title"] == "The host stalls inside the step"]


def test_a_lock_that_is_waited_for_now_and_then_is_named_with_its_holder(tmp_path: Path) -> None:
    found = report(tmp_path, "lock", 500)
    seen, waiter, holder = sampled(tmp_path), line_of("waiter"), line_of("holder")
    held = seen.partner(seen.blocked & seen.at((JOB.name, waiter)))
    assert held is not None and (held.thread, held.line) == ("writer", holder)
    if one := finding(found, f"The training thread waits for another thread ({JOB.name}:{waiter})"):
        assert f"{JOB.name}:{holder}" in one["cause"] and "thread writer" in one["cause"]
        assert {w["line"] for w in one["where"]} == {waiter, holder}
        assert one["saving_pct"] > 10


def test_a_line_of_every_23rd_step_is_named(tmp_path: Path) -> None:
    found = report(tmp_path, "periodic", 400)
    seen, line = sampled(tmp_path), line_of("periodic")
    assert (set(seen.log.step[seen.step[seen.at((JOB.name, line))]] % 23)) == {22}
    if one := finding(found, f"A line takes long in some steps ({JOB.name}:{line})"):
        # its clock goes on while it has no core: then it takes less, not more
        assert 0.3 < one["saving_ms_per_step"] / (200 / 23) < 1.6


def test_a_line_that_grows_is_named(tmp_path: Path) -> None:
    found = report(tmp_path, "growth", 200)
    seen, line = sampled(tmp_path), line_of("growth")
    late, there = seen.log.step[seen.step] >= 100, seen.at((JOB.name, line))
    assert (there & late).sum() > (there & ~late).sum()  # evenly spaced: steps with the line are longer
    if (~there & late).sum() > 1.2 * (~there & ~late).sum():
        return  # other lines take longer too: so did the machine
    if one := finding(found, f"Steps become longer during the run ({JOB.name}:{line})"):
        early, late = (e["value"] for e in one["evidence"][:2])
        assert late > 1.2 * early  # of the last third, longer than the mean step


def test_a_sampled_job_prints_and_learns_the_same(tmp_path: Path) -> None:
    plain = [sys.executable, "-W", "ignore", str(JOB), "lock", "60"]
    first, second = started(plain, tmp_path), recorded(tmp_path, plain, "--light")
    assert (second.returncode, second.stdout) == (first.returncode, first.stdout)
    assert [line for line in second.stderr.splitlines() if not line.startswith("stepscope: ")] == []
    assert (tmp_path / "run" / "rank00000.samples.jsonl").exists()


def test_a_job_that_is_killed_has_samples(tmp_path: Path) -> None:
    plain = [sys.executable, "-W", "ignore", str(JOB), "lock", str(10**6)]
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--light", "--out", str(tmp_path / "run"), "--"]
    samples = tmp_path / "run" / "rank00000.samples.jsonl"
    with subprocess.Popen([*record, *plain], env=environment(), stderr=subprocess.PIPE, start_new_session=True) as job:
        until = time.monotonic() + HANG_S
        while not samples.exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGKILL)
    assert {"MainThread", "writer"} <= set(json.loads(samples.read_text())["threads"])
