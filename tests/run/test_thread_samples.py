"""Samples of threads: they give the time of lines, and damaged files are left out."""

import json

import pytest
from tests.analyze.step_logs import log_lines, write_log

from stepscope.analyze.thread_time import sampled_steps, time_by_line
from stepscope.run.side_files import readable_step_logs, side_files


def test_samples_give_the_time_of_lines(tmp_path):
    frames = [["train.py", 3, "step", "x = 1", 1], ["train.py", 7, "step", "y = 2", 1]]
    rows = [[50_000 * n + 20_000, 0, 1, int(n % 4 == 0), 0, []] for n in range(20)]
    samples = {
        "schema": 1, "rank": 0, "root": "/p", "epoch_ns": 0, "threads": ["writer"], "preempted": 3,
        "frames": frames, "stacks": [[0], [1]], "samples": rows,
    }  # fmt: skip
    ran = [{**line, "cpu": {"run_ns": 50_000_000}} for line in log_lines([50.0] * 21, at_ns=0)]
    write_log(tmp_path, 0, ran, ranks=1)
    (tmp_path / "rank00000.samples.jsonl").write_text(json.dumps(samples) + "\n")
    logs, _ = readable_step_logs(tmp_path)
    found = time_by_line(sampled_steps(side_files(tmp_path).samples, logs), 50.0)
    assert found == {("train.py", 3): pytest.approx(37.5, rel=0.1), ("train.py", 7): pytest.approx(12.5, rel=0.2)}
