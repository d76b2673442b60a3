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
    found: dict[str, Any] = json.loads((where / "run" / "run.json").read_text())
    return found


def steps(where: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (where / "run" / "rank00000.steps.jsonl").read_text().splitlines()[1:]]
