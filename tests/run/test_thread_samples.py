"""Samples of threads: they give the time of lines, and damaged files are left out."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.step_logs import log_lines, write_log

from stepscope.analyze.thread_time import sampled_steps, time_by_line
from stepscope.run.side_files import readable_step_logs, side_files

MS = 1_000_000


def document(count: int, **changed: Any) -> dict[str, Any]:
    rows = [[100_000 * i, 0, 1, 0, 0, [[0, 0, 0]]] for i in range(count)]
    return {
        "schema": 1,
        "rank": 0,
        "root": "/p",
        "epoch_ns": 0,
        "threads": ["writer"],
        "preempted": 3,
        "frames": [["train.py", 3, "step", "x = 1", 1]],
        "stacks": [[0]],
        "samples": rows,
        **changed,
    }


def write(folder: Path, samples: dict[str, Any], ran_ms: list[int]) -> None:
    """Write steps of 50 ms in which the thread ran for so long."""
    lines = log_lines([50.0] * len(ran_ms), at_ns=0)
    write_log(
        folder, 0, [{**line, "cpu": {"run_ns": ran * MS}} for line, ran in zip(lines, ran_ms, strict=True)], ranks=1
    )
    (folder / "rank00000.samples.jsonl").write_text(json.dumps(samples) + "\n")


def test_samples_give_the_time_of_lines(tmp_path: Path) -> None:
    frames = [["train.py", 3, "step", "x = 1", 1], ["train.py", 7, "step", "y = 2", 1]]
    rows = [[50_000 * n + 20_000, 0, 1, int(n % 4 == 0), 0, []] for n in range(20)]
    write(tmp_path, document(0, frames=frames, stacks=[[0], [1]], samples=rows), [50] * 21)
    logs, _ = readable_step_logs(tmp_path)
    found = time_by_line(sampled_steps(side_files(tmp_path).samples, logs), 50.0)
    assert found == {("train.py", 3): pytest.approx(37.5, rel=0.1), ("train.py", 7): pytest.approx(12.5, rel=0.2)}
