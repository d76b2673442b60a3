"""Samples of threads: the wait for a core is spread over the steps it belongs to, and damaged files are left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.run.side_files import readable_step_logs, side_files, with_core_waits

MS = 1_000_000


def document(delays_us: list[int | None], **changed: Any) -> dict[str, Any]:
    rows = [[100_000 * i, 0, 1, 0, 0, delay, [[0, 0, 0]]] for i, delay in enumerate(delays_us)]
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
    lines: list[dict[str, Any]] = [{"schema": 1, "rank": 0, "world_size": 1}]
    for n, ran in enumerate(ran_ms):
        times = {"start_ns": 50 * MS * n, "end_ns": 50 * MS * (n + 1), "dur_ns": 50 * MS, "device_ns": None}
        state = {"profiled": False, "phase": "after", "regions": {}, "cpu": {"run_ns": ran * MS}}
        lines.append({"step": n, **times, **state})
    (folder / "rank00000.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rank00000.samples.jsonl").write_text(json.dumps(samples) + "\n")


def test_a_wait_for_a_core_belongs_to_the_steps_in_which_the_thread_did_not_run(tmp_path: Path) -> None:
    # Between the first two samples 30 ms, all in step 1; then none, although step 2 waited for something.
    write(tmp_path, document([0, 30_000, 30_000, 40_000]), [50, 20, 30, 50, 45, 45, 50])
    (log,), _ = readable_step_logs(tmp_path)
    (log,) = with_core_waits((log,), side_files(tmp_path).samples)
    waits_ms = (log.column("cpu.delay_ns") / MS).tolist()
    assert waits_ms[:6] == pytest.approx([0, 30, 0, 0, 5, 5])
    assert waits_ms[6] != waits_ms[6]  # after the last sample: unknown


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": 2},
        {"rank": 5},
        {"frames": None},
        {"stacks": [[7]]},
        {"stacks": [["a"]]},
        {"samples": [[0, 0, 0, 9, 0, 0, []]]},
        {"samples": [[0, 0, 0, 0, 0, 0, [[4, 0, 0]]]]},
        {"samples": [[10**40, 0, 0, 0, 0, 0, []]]},
        {"samples": 3},
        {"threads": 7},
    ],
)
def test_a_file_that_is_not_as_it_is_written_is_left_out(tmp_path: Path, changed: dict[str, Any]) -> None:
    write(tmp_path, document([0, 1], **changed), [50, 50])
    found = side_files(tmp_path)
    assert found.samples == ()
    assert [line for line in found.unread if line.startswith("rank00000.samples.jsonl: left out")]
