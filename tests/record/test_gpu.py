"""Recording on a GPU: NCCL ranks that share one device, a CUDA graph, memory, telemetry and live collectives."""

import gzip
import json
import os
import pickle
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.limits import HANG_S
from tests.record.script_runs import json_lines, step_lines

import stepscope
from stepscope.analyze.memory_snapshot import snapshot_view
from stepscope.record.quick_check import quick_check
from stepscope.trace.memory_snapshot import read_memory_snapshot

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.job,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
JOB = Path(__file__).with_name("nccl_job.py")
RANKS = 4


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("nccl")
    for i, mode in enumerate(("plain", "window")):
        asked = {"mode": mode, "steps": 80, "ranks": RANKS, "port": 29710 + i}
        subprocess.run([sys.executable, str(JOB), str(work), json.dumps(asked)], check=True)
    return work


def told(work: Path, mode: str, rank: int) -> dict[str, Any]:
    return json.loads((work / f"{mode}.0.{rank}.json").read_text())


def test_losses_are_bit_equal_over_nccl(work: Path) -> None:
    for rank in range(RANKS):
        assert told(work, "window", rank)["losses"] == told(work, "plain", rank)["losses"]


def test_device_time_of_steps_agrees_with_synchronised_blocks(work: Path) -> None:
    for rank in range(RANKS):
        truth_ms = told(work, "window", rank)["ms_per_step"][6]  # steps 60 to 69, after the window
        device_ms = [s["device_ns"] / 1e6 for s in step_lines(work / "window", rank) if 60 <= s["step"] < 70]
        assert statistics.fmean(device_ms) == pytest.approx(truth_ms, rel=0.05)


def test_step_returns_to_its_time_after_the_window(work: Path) -> None:
    run = json.loads((work / "window" / "run.json").read_text())
    assert run["unprofiled_after"]["median_ms"] == pytest.approx(run["unprofiled_before"]["median_ms"], rel=0.1)


def test_trace_has_kernels_regions_and_collectives(work: Path) -> None:
    with gzip.open(work / "window" / "rank00003.pt.trace.json.gz") as f:
        events = json.load(f)["traceEvents"]
    names = {e["name"] for e in events}
    assert {"forward_pass", "backward_pass", "optimizer_step", "ProfilerStep#35", "record_param_comms"} <= names
    assert any(e.get("cat") == "kernel" and "nccl" in e["name"].lower() for e in events)
    assert (work / "window" / "rank00003.flight_recorder.jsonl").read_text().count("nccl:all_reduce") > 10


def test_recording_does_not_break_a_graph_capture(tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256).cuda()
    x = torch.randn(64, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with stepscope.profile(out=tmp_path / "run", wait=8, warmup=1, active=2) as recording:
        for _ in range(3):
            model(x).sum().backward()
            recording.step()
        torch.cuda._sleep(1_000_000_000)  # the last step's end is still to come while the graph is captured
        with torch.cuda.graph(graph):
            loss = model(x).sum()
            recording.step()  # a step that ends inside the capture has no device time, and does no harm
        for _ in range(20):
            graph.replay()
            recording.step()
        torch.cuda.synchronize()
    assert loss.item() == pytest.approx(model(x).sum().item(), rel=1e-3)
    assert [s["step"] for s in step_lines(tmp_path / "run", 0)] == list(range(24))


SAMPLERS_JOB = Path(__file__).with_name("gpu_samplers_job.py")
WEIGHTS_BYTES = 4 * 1024 * 1024 * 4

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samplers")
    command = [sys.executable, str(SAMPLERS_JOB), str(folder)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, done.stderr


@pytest.fixture
def run(job):
    return job[0] / "run"


def test_memory_at_the_peak_is_the_sum_of_its_categories(run):
    for rank in (0, 1):
        found = json_lines(run / f"rank0000{rank}.memory.jsonl")
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
    storages = [row for row in json_lines(run / "rank00000.memory.jsonl") if row["kind"] == "storage"]
    weights = [row for row in storages if row["category"] == "parameters"]
    assert len(weights) == 4
    assert {row["address"] for row in weights} <= held


def test_telemetry_says_what_the_device_did(run):
    device, counters, *more = json_lines(run / "rank00000.telemetry.jsonl")
    assert device["max_sm_clock_mhz"] > 0
    states = [row for row in more if row["kind"] == "state"]
    assert states
    joules = [row["energy_j"] for row in more if row["kind"] == "energy"]
    assert counters["device"] == "nvml" and joules == sorted(joules) and joules[-1] > joules[0]
    assert all(state["sm_clock_mhz"] > 0 and state["power_w"] > 0 for state in states)
    assert all(0 <= state["utilization_pct"] <= 100 for state in states)
    assert all(isinstance(state["throttle_reasons"], list) for state in states)


def test_live_collectives_have_bytes_and_device_times(run):
    for rank in (0, 1):
        operations = {row["operation"]: row for row in json_lines(run / f"rank0000{rank}.collectives.jsonl")[1:]}
        reduced, gathered = operations["all_reduce"], operations["all_gather"]
        assert reduced["bytes"] >= 24 * WEIGHTS_BYTES
        assert gathered["count"] >= 23
        for row in (reduced, gathered):
            assert 0 < row["timed_count"] <= row["count"]
            assert 0 < row["busbw_gb_per_s"] <= row["best_busbw_gb_per_s"] < 5_000


def test_a_recording_that_began_after_nccl_says_why_there_is_no_log(job):
    folder, said = job
    assert not list((folder / "run").glob("*.nccl.log"))
    assert said.count("no NCCL log: NCCL reads its settings once, and started before the recording") == 2


def test_nccl_log_of_each_rank_is_kept(tmp_path):
    asked = {"mode": "plain", "steps": 12, "ranks": 2, "port": 29741}
    job = [sys.executable, str(SAMPLERS_JOB.with_name("nccl_job.py")), str(tmp_path), json.dumps(asked)]
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


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_real_out_of_memory_error_leaves_its_history(tmp_path, where):
    """The line, the module and the size of a request that the device cannot satisfy, on the thread that made it."""
    (script := tmp_path / "job.py").write_text(OUT_OF_MEMORY)
    command = [
        sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(tmp_path / "run"), "--memory", "--light",
    ]  # fmt: skip
    done = subprocess.run(
        [*command, "--", sys.executable, str(script), where], stderr=subprocess.PIPE, text=True, timeout=HANG_S
    )
    assert done.returncode == 1 and "OutOfMemoryError" in done.stderr.splitlines()[-1] + done.stderr[-2000:]
    view = snapshot_view(read_memory_snapshot(tmp_path / "run" / "rank00000.oom.memory.pickle"))
    error = view.out_of_memory
    assert error.requested_bytes >= 1 << 42 and error.device_free_bytes < 1 << 42
    line = next(n for n, text in enumerate(OUT_OF_MEMORY.splitlines(), 1) if f"# {where}" in text)
    assert error.place.split(" ")[0].endswith(f"job.py:{line}")
    assert error.module == ("1" if where == "forward" else None)
    assert error.by_purpose["weights"] == 4 * 64 * 64


OUT_OF_MEMORY = """
import sys
import torch

where = sys.argv[1]


class Large(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.new_empty(1 << 40) if step == 2 and where == "backward" else grad  # backward


class Last(torch.nn.Module):
    def forward(self, x):
        if step == 2 and where == "forward":
            x.new_empty(1 << 40)  # forward
        return Large.apply(x)


model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), Last()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
