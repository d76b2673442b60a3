"""Two machines, an agent of torchrun on each: ranks of both are one benchmark, and rank 0 writes one folder.

The machines are network namespaces with a cable between them where the system permits it (root), each with a host name
of its own; elsewhere they are two agents on the loopback device.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S

ROOT = Path(__file__).parents[3]
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


@dataclass(frozen=True)
class Machine:
    """Where an agent runs: what its command begins with, and what its ranks are told."""

    begin: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"


@contextmanager
def namespaces() -> Iterator[list[Machine] | None]:
    """Give two machines with a cable between them, None where the system does not permit it."""
    own = [f"stepscope-{os.getpid()}-{i}" for i in (0, 1)]
    ends = [f"sc{os.getpid()}{i}" for i in (0, 1)]
    try:
        done = all(_ip("netns", "add", name) for name in own)
        done = done and _ip("link", "add", ends[0], "netns", own[0], "type", "veth", "peer", ends[1], "netns", own[1])
        for name, end, address in zip(own, ends, ("10.213.7.1/24", "10.213.7.2/24"), strict=True):
            done = done and _ip("-n", name, "addr", "add", address, "dev", end)
            done = done and _ip("-n", name, "link", "set", end, "up") and _ip("-n", name, "link", "set", "lo", "up")
        machines = [_machine(name, end) for name, end in zip(own, ends, strict=True)]
        done = done and all(
            subprocess.run([*machine.begin, "true"], capture_output=True).returncode == 0 for machine in machines
        )
        yield machines if done else None
    finally:
        for name in own:
            _ip("netns", "delete", name)


def _machine(name: str, end: str) -> Machine:
    renamed = ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"] if which("unshare") else []
    return Machine(["ip", "netns", "exec", name, *renamed], {"GLOO_SOCKET_IFNAME": end}, "10.213.7.1")


def _ip(*words: str) -> bool:
    return bool(which("ip")) and subprocess.run(["ip", *words], capture_output=True).returncode == 0


@pytest.mark.job
@pytest.mark.slow
def test_two_machines_make_one_benchmark_and_a_rank_that_gives_up_loses_nothing_else(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with namespaces() as permitted:
        machines = permitted or [Machine(), Machine()]
        agents = [_agent(machine, tmp_path / f"machine{i}", i, port) for i, machine in enumerate(machines)]
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


def _agent(machine: Machine, folder: Path, number: int, port: int) -> "subprocess.Popen[str]":
    folder.mkdir()
    (folder / "own.py").write_text(WORKLOAD)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    where = [f"--node-rank={number}", f"--master-addr={machine.address}", f"--master-port={port}"]
    method = ["--only", "ddp-bf16", "--steps", "3", "--warmup-steps", "1", "--runs", "2", "--batch-size", "2"]
    return subprocess.Popen(
        [*machine.begin, *torchrun, *where, "-m", "stepscope", "bench", "strategy", "--workload", "own:make",
         "--out", "out", *method],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path(ROOT / "src"), "OMP_NUM_THREADS": "1", **machine.variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
