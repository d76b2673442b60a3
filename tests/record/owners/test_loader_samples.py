"""Lines of the dataset in forked workers are sampled around the step with frames; losses and spawned workers stay."""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S

from stepscope.contract.run_folder import owners_file
from stepscope.record.owners.event_tree import Places
from stepscope.record.owners.frame_step import loader_shares
from stepscope.record.owners.loader_samples import LoaderSamples, innermost_line

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


def test_counts_of_a_generation_are_read_once_it_is_over() -> None:
    samples = LoaderSamples()
    samples.watch()
    samples._publish(1, {("/p/data.py", 12): 30, ("/p/data.py", 15): 10})
    assert samples.lines() == {("/p/data.py", 12): 30, ("/p/data.py", 15): 10}
    samples.watch()
    assert samples.lines() == {}, "those are of the generation before"


def test_text_that_is_too_long_is_cut_and_half_a_text_is_not_read() -> None:
    samples = LoaderSamples()
    samples.watch()
    samples._publish(1, {(f"/p/{'x' * 300}{i}.py", i): 100 - i for i in range(60)})
    assert 10 < len(samples.lines()) < 60
    samples._shared[1 : 1 + 64 * 8192] = b"\x07\x00\x00\x00[1, [[" * 52428 + b"\x00" * 8
    assert samples.lines() == {}


def test_frames_outside_the_worker_loop_are_not_looked_at() -> None:
    def outer() -> None:
        seen.append(innermost_line(sys._getframe(), outer.__code__, Places()))

    def inner() -> None:
        seen.append(innermost_line(sys._getframe(), outer.__code__, Places()))

    seen: list[tuple[str, int] | None] = []
    outer()
    inner()
    assert seen[0] is None
    assert seen[1] is not None and seen[1][0] == __file__


def test_shares_need_enough_samples() -> None:
    assert loader_shares({("/p/a.py", 3): 4}, "/p") is None
    assert loader_shares({("/p/a.py", 3): 15, ("/q/b.py", 4): 5}, "/p") == [["a.py:3", 0.75], ["/q/b.py:4", 0.25]]


def test_the_thread_beside_a_worker_loop_ends_once_nobody_will_ask() -> None:
    samples = LoaderSamples()
    begun = threading.Event()
    loop = samples.in_worker(lambda: begun.wait(0.1))
    before = set(threading.enumerate())
    loop()
    (thread,) = set(threading.enumerate()) - before
    samples.retire()
    thread.join(HANG_S)
    assert not thread.is_alive()
    loop()
    assert set(threading.enumerate()) <= before, "none is started any more"
