"""Folders of runs with a known truth: step logs and run.json as the recorder leaves them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.analyze.step_logs import log_lines, write_log

MS = 1_000_000
COMMAND = ["torchrun", "train.py"]


def nine_jobs(folder: Path) -> Path:
    """Write the jobs of the docs: `node05` is 2.5 ms late, and the last commit costs 3 ms more."""
    random = np.random.default_rng(7)
    for n in range(1, 10):
        others = random.permutation([f"node{i:02d}" for i in (1, 2, 3, 4, 6, 7, 8)])[:3].tolist()
        light_run(
            folder / f"job-{n}", created=f"2026-11-{n:02d}T08:00:00+00:00",
            step_ms=20.0 + 3.0 * (n == 9) + random.normal(0, 0.15), hosts=[others[0], "node05", *others[1:]],
            late_ms=(0.0, 2.5), commit="4e1b8cc24e" * 4 if n == 9 else "91d07ab391" * 4, seed=n,
        )  # fmt: skip
    return folder


def eight_runs(folder: Path, bad_host: str) -> Path:
    """Write runs over four hosts, of which one is always late; the last run is slower than all others."""
    for n in range(1, 9):
        light_run(
            folder / f"run-{n}", created=f"2026-11-{n:02d}T08:00:00+00:00", hosts=["h1", bad_host, "h3", "h4"],
            step_ms=24.0 if n == 8 else 20.0 + n % 3 / 10, late_ms=(0.0, 3.0), commit="ab"[n // 8] * 40, seed=n,
            steps=12,
        )  # fmt: skip
    return folder


def light_run(
    folder: Path, *, created: str, step_ms: float = 20.0, hosts: Sequence[str] = ("a", "b"),
    late_ms: Sequence[float] = (), commit: str = "c" * 40, steps: int = 40, seed: int = 0,
) -> Path:  # fmt: skip
    """Write a run of one rank per host: each step takes as long as the latest rank, the others wait for it."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(seed).normal(0, 0.1, (len(hosts), steps))
    late = np.array([*late_ms, *[0.0] * (len(hosts) - len(late_ms))])[:, None]
    own = step_ms + late + noise
    whole = own.max(axis=0)
    for rank in range(len(hosts)):
        waits = whole - own[rank]
        times = ({"gradient_sync": wait, "outside": step - wait} for step, wait in zip(whole, waits, strict=True))
        memory = {"reserved_bytes": 3_000_000_000 + rank}
        write_log(folder, rank, log_lines(times, window=range(99, 99), memory=memory), ranks=len(hosts))
    described = {
        "schema": 1, "created": created, "commit": commit, "command": COMMAND, "world_size": len(hosts),
        "strategy": "ddp", "device": {"kind": "cuda", "name": "NVIDIA H200"}, "model": {"parameters": 72},
        "ranks": {str(rank): {"host": host} for rank, host in enumerate(hosts)},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(described))
    return folder
