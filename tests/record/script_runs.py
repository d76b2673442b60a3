"""Scripts of `scripts/`, run plain or recorded as a new user would, and what they leave."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.job_environment import python_path
from tests.limits import HANG_S

from stepscope.record.config import RecordConfig

SCRIPTS = Path(__file__).parent / "scripts"
SOURCE = Path(__file__).parents[2] / "src"
INJECT = SOURCE / "stepscope" / "record" / "launch" / "inject"
# what small jobs begin with
TRAIN = """
import os, sys, threading, time, torch, torch.distributed as dist
torch.set_num_threads(1)
def train(steps=8, after=lambda step: None):
    model = torch.nn.Linear(4, 4)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step)
"""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "TEARDOWN_CUPTI")}
    # Sets of strings in a pickle lie in the order of their hashes, which differ from process to process.
    same = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return {**kept, **same, "PYTHONPATH": python_path(SOURCE), "CUDA_VISIBLE_DEVICES": ""}


def started(command: list[str], where: Path, config: RecordConfig | None = None) -> "subprocess.CompletedProcess[str]":
    """Return a job that ended; recorded, where settings are given that the command line has no options for."""
    environ = environment()
    if config is not None:
        environ |= {**config.to_env(), "PYTHONPATH": python_path(INJECT, SOURCE)}
    return subprocess.run(command, cwd=where, env=environ, capture_output=True, text=True, timeout=HANG_S)


def script(name: str, *words: str) -> list[str]:
    return [sys.executable, "-W", "ignore", str(SCRIPTS / name), *words]


def recorded(where: Path, command: list[str], *options: str) -> "subprocess.CompletedProcess[str]":
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(where / "run"), *options, "--"]
    return started([*record, *command], where)


def run_json(where: Path) -> dict[str, Any]:
    return json.loads((where / "run" / "run.json").read_text())


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def step_lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Return the step log of a rank without its header."""
    return json_lines(folder / f"rank{rank:05d}.steps.jsonl")[1:]


def steps(where: Path) -> list[dict[str, Any]]:
    return step_lines(where / "run")
