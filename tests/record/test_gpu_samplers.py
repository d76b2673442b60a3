"""Memory, telemetry and live collectives on a GPU, recorded by two NCCL ranks that share it."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.limits import HANG_S

from stepscope.record.quick_check import quick_check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.job,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
JOB = Path(__file__).with_name("gpu_samplers_job.py")
WEIGHTS_BYTES = 4 * 1024 * 1024 * 4


SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samplers")
    command = [sys.executable, str(JOB), str(folder)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, done.stderr


@pytest.fixture
def run(job):
    return job[0] / "run"


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_memory_at_the_peak_is_the_sum_of_its_categories(run):
    for rank in (0, 1):
        found = rows(run / f"rank0000{rank}.memory.jsonl")
        (peak,) = [row for row in found if row["kind"] == "peak"]
        parts = [value for name, value in peak.items() if name.endswith("_bytes") and name != "peak_bytes"]
        assert sum(parts) == peak["peak_bytes"]
        assert peak["parameters_bytes"] == WEIGHTS_BYTES
        assert peak["optimizer_bytes"] >= 2 * WEIGHTS_BYTES
        after_backward = [row for row in found if row.get("label") == "end backward_pass"]
        assert {row["gradients_bytes"] for row in after_backward} == {WEIGHTS_BYTES}
        assert all(row["reserved_bytes"] >= row["allocated_bytes"] > 0 for row in after_backward)
        assert all(row["largest_free_block_bytes"] <= row["free_in_segments_bytes"] for row in after_backward)


def test_memory_history_has_allocations_with_stacks_and_names_our_storages(run):
    snapshot = pickle.loads((run / "rank00000.memory.pickle").read_bytes())
    traces = [entry for device in snapshot["device_traces"] for entry in device]
    assert {"alloc", "free_completed"} <= {entry["action"] for entry in traces}
    assert any("gpu_samplers_job.py" in frame["filename"] for entry in traces for frame in entry.get("frames", []))
    held = {block["address"] for segment in snapshot["segments"] for block in segment["blocks"]}
    storages = [row for row in rows(run / "rank00000.memory.jsonl") if row["kind"] == "storage"]
    weights = [row for row in storages if row["category"] == "parameters"]
    assert len(weights) == 4
    assert {row["address"] for row in weights} <= held


def test_telemetry_says_what_the_device_did(run):
    device, *states = rows(run / "rank00000.telemetry.jsonl")
    assert device["max_sm_clock_mhz"] > 0
    assert states
    assert all(state["sm_clock_mhz"] > 0 and state["power_w"] > 0 for state in states)
    assert all(0 <= state["utilization_pct"] <= 100 for state in states)
    assert all(isinstance(state["throttle_reasons"], list) for state in states)


def test_live_collectives_have_bytes_and_device_times(run):
    for rank in (0, 1):
        operations = {row["operation"]: row for row in rows(run / f"rank0000{rank}.collectives.jsonl")[1:]}
        reduced, gathered = operations["all_reduce"], operations["all_gather"]
        assert reduced["bytes"] >= 24 * WEIGHTS_BYTES
        assert gathered["count"] >= 23
        for row in (reduced, gathered):
            assert 0 < row["timed_count"] <= row["count"]
            assert 0 < row["busbw_gb_per_s"] <= row["best_busbw_gb_per_s"] < 5_000


def test_a_recording_that_began_after_nccl_says_why_there_is_no_log(job):
    folder, said = job
    assert not list((folder / "run").glob("*.nccl.log"))
    assert said.count("no NCCL log: NCCL looks at its settings once, and was up before the recording began") == 2


def test_nccl_log_of_each_rank_is_kept(tmp_path):
    asked = {"mode": "plain", "steps": 12, "ranks": 2, "port": 29741}
    job = [sys.executable, str(JOB.with_name("nccl_job.py")), str(tmp_path), json.dumps(asked)]
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--light", "--nccl-log"]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    subprocess.run([*record, "--out", str(tmp_path / "run"), "--", *job], check=True, timeout=HANG_S, env=environment)
    for rank in (0, 1):
        assert "NCCL INFO" in (tmp_path / "run" / f"rank0000{rank}.nccl.log").read_text()


def test_quick_check_waits_for_the_device():
    model = torch.nn.Linear(2048, 2048, device="cuda")
    data = [(torch.randn(4096, 2048), torch.randn(4096, 2048)) for _ in range(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.weight.detach().clone()
    found = quick_check(model, data, torch.nn.functional.mse_loss, optimizer, steps=5)
    assert found.device == "cuda:0"
    assert all(phase.ms > 0 for phase in found.phases)
    assert torch.equal(model.weight, weight)
