import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.job_environment import python_path
from tests.limits import HANG_S
from tests.made_once import made_once
from tests.one_rank_group import one_rank_group
from tests.record.script_runs import json_lines

from stepscope.record.collectives import CollectiveTap, LiveCollectives
from stepscope.run.side_files import side_files

JOB = Path(__file__).parents[1] / "collectives_job.py"
BUCKETS_BYTES = 2 * (512 * 512 + 512) * 4
PYTHON_BYTES = 4000 + 4000 + 8000 + 8000 + 4000


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return made_once(tmp_path_factory, "collectives", run_job)


def run_job(folder):
    environment = {**os.environ, "PYTHONPATH": python_path(Path(__file__).parents[3] / "src")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(JOB), str(rank), "2", str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=HANG_S)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors


@pytest.mark.job
def test_a_steps_bytes_include_those_of_ddps_reducer(job):
    lines = json.loads((job / "lines0.json").read_text())["lines"]
    assert lines[0] == {}
    last = lines[-1]["collectives"]
    assert last["count"] == 2 + 6  # two buckets, six from Python with the barrier
    assert last["bytes"] == BUCKETS_BYTES + PYTHON_BYTES
    assert (last["p2p_count"], last["p2p_bytes"]) == (1, 4000)
    assert None in [line["collectives"]["bytes"] for line in lines[1:3]]  # not guessed before it was seen


@pytest.mark.job
def test_every_operation_has_its_count_bytes_and_bandwidth(job):
    for rank, (send, other) in enumerate((("send", "recv"), ("recv", "send"))):
        found, *operations = json_lines(job / f"rank0000{rank}.collectives.jsonl")
        assert found["rank"] == rank
        assert found["groups"][0]["ranks"] == [0, 1]
        rows = {row["operation"]: row for row in operations}
        assert rows["reduce_scatter"]["count"] == 8  # gloo itself calls it an all-reduce
        assert rows["reduce_scatter"]["bytes"] == 8 * 8000
        assert rows["all_gather"]["count"] >= 8  # DDP verifies its parameters with one more
        assert rows["all_reduce"]["count"] == 8 * 2 + 7 * 2 + 1  # DDP makes its two buckets after the first step
        assert rows[send]["bytes"] == 8 * 4000
        assert other not in rows
        assert 0 < rows["reduce_scatter"]["timed_count"] <= 8  # not timed where the job waited too late
        assert rows["reduce_scatter"]["busbw_gb_per_s"] == rows["reduce_scatter"]["algbw_gb_per_s"] / 2
        assert rows["reduce_scatter"]["best_busbw_gb_per_s"] >= rows["reduce_scatter"]["busbw_gb_per_s"]


@pytest.fixture
def alone():
    with one_rank_group():
        yield


def test_a_recorder_that_cannot_be_read_is_a_note_and_nothing_else(alone, tmp_path):
    def broken():
        raise RuntimeError("no such thing")

    live = LiveCollectives(entries=broken)
    live.install()
    dist.all_reduce(torch.ones(5))
    live.on_step_end(0)
    live.on_close(tmp_path, 0)
    found, *operations = json_lines(tmp_path / "rank00000.collectives.jsonl")
    assert "no such thing" in found["notes"][0]
    assert operations[0]["bytes"] == 20


class Recorder:
    """A flight recorder in which every collective of NCCL so far took 0.25 ms."""

    def __init__(self):
        self.count = 0

    def entries(self):
        group = dist.distributed_c10d._get_default_group().group_name
        of_all = {"process_group": (group, "default_pg"), "is_p2p": False, "time_created_ns": 1, "duration_ms": 0.25}
        of_all |= {"profiling_name": "nccl:all_reduce", "input_sizes": [[5]], "input_dtypes": ["Float"]}
        return [{"record_id": n, "collective_seq_id": n, **of_all} for n in range(1, self.count + 1)]


def test_times_of_nccl_are_known_per_step_and_by_number(alone, tmp_path):
    recorder = Recorder()
    live = LiveCollectives(entries=recorder.entries)
    live.install()
    until, step = time.monotonic() + HANG_S, 0
    line: dict[str, Any] = {}
    while "device_ns" not in line.get("collectives", {}) and time.monotonic() < until:
        for _ in range(2):
            dist.all_reduce(torch.ones(5))
            recorder.count += 1
        line = live.on_step_end(step)
        step += 1
        if step % 30 == 0:
            live.on_window_end()
            time.sleep(0.15)
    assert line["collectives"]["device_ns"] == pytest.approx(500_000, rel=0.15)
    live.on_close(tmp_path, 0)
    (times,) = side_files(tmp_path).collective_times.values()
    assert times.ns_by_number == dict.fromkeys(range(1, recorder.count + 1), 250000)


def test_a_failure_in_the_tap_is_one_warning_and_the_collective_still_runs(alone, capsys):
    def broken(call):
        raise ValueError("boom")

    tap = CollectiveTap(seen=broken, timed=lambda call, dur_ns: None, in_python=lambda *a, **k: None)
    tap.install()
    try:
        x = torch.ones(3)
        for _ in range(3):
            dist.all_reduce(x)
    finally:
        tap.remove()
    assert x.tolist() == [1, 1, 1]
    assert capsys.readouterr().err.count("boom") == 1
