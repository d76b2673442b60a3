"""Two agents of torchrun without a shared folder: ranks of both are one benchmark, and rank 0 writes one folder."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]
WORKLOAD = """
import os
import torch
from torch import nn

def make(spec, device):
    def loss(model, batch):
        if spec.precision == "bf16" and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return model(batch).square().mean()
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), [torch.ones(2, 8)], loss
"""


@pytest.mark.job
@pytest.mark.slow
def test_two_machines_make_one_benchmark_and_a_rank_that_gives_up_loses_nothing_else(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    agents = [_agent(tmp_path / f"machine{i}", i, port) for i in (0, 1)]
    try:
        said = [agent.communicate(timeout=HANG_S)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], said
    results = json.loads((tmp_path / "machine0" / "out" / "results.json").read_text())
    assert results["complete"] and results["environment"]["world_size"] == 2
    assert {row["name"]: len(row["samples_ms"]) for row in results["series"]} == {"ddp": 2}
    assert all(row["summary"]["samples_per_step"] == 4 for row in results["series"])
    assert "ran out" not in said[0] and results["recommendation"]["excluded"]["ddp-bf16"].startswith("out of memory")
    assert "2 GiB" in results["recommendation"]["excluded"]["ddp-bf16"]  # the reason of the other machine's rank
    assert results["recommendation"]["series"] == "ddp"
    assert not (tmp_path / "machine1" / "out" / "results.json").exists()
    assert "results in out" in said[0] and "results in" not in said[1]


def _agent(folder: Path, number: int, port: int) -> "subprocess.Popen[str]":
    folder.mkdir()
    (folder / "own.py").write_text(WORKLOAD)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    where = [f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    method = ["--only", "ddp-bf16", "--steps", "3", "--warmup-steps", "1", "--runs", "2", "--batch-size", "2"]
    return subprocess.Popen(
        [*torchrun, *where, "-m", "stepscope", "bench", "strategy", "--workload", "own:make",
         "--out", "out", *method],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
