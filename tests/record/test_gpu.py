"""Recording on a GPU: four NCCL ranks on one device, and a CUDA graph."""

import gzip
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stepscope

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
    found: dict[str, Any] = json.loads((work / f"{mode}.0.{rank}.json").read_text())
    return found


def steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    lines = (folder / f"rank{rank:05d}.steps.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_losses_are_bit_equal_over_nccl(work: Path) -> None:
    for rank in range(RANKS):
        assert told(work, "window", rank)["losses"] == told(work, "plain", rank)["losses"]


def test_device_time_of_steps_agrees_with_synchronised_blocks(work: Path) -> None:
    for rank in range(RANKS):
        truth_ms = told(work, "window", rank)["ms_per_step"][6]  # steps 60 to 69, after the window
        device_ms = [s["device_ns"] / 1e6 for s in steps(work / "window", rank) if 60 <= s["step"] < 70]
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
        with torch.cuda.graph(graph):
            loss = model(x).sum()
            recording.step()  # a step that ends inside the capture has no device time, and does no harm
        for _ in range(20):
            graph.replay()
            recording.step()
        torch.cuda.synchronize()
    assert loss.item() == pytest.approx(model(x).sum().item(), rel=1e-3)
    assert [s["step"] for s in steps(tmp_path / "run", 0)] == list(range(24))
