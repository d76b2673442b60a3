"""The helper process: what it makes of lines and messages, and what it does when the job dies.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import json
import os
import queue
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.limits import HANG_S

from stepscope.record.helper.open_run import Outbox
from stepscope.record.helper.scratch import make_scratch, remove_scratch
from stepscope.record.step_statistics import StepStatistics


def settings(scratch: Path, *, rank: int = 0, world_size: int = 1, **more: Any) -> dict[str, Any]:
    made = make_scratch(str(scratch.parent))
    remove_scratch(scratch)
    made.rename(scratch)
    patience = {"other_ranks_wait_s": 0.3, "write_timeout_s": 60.0}
    return {"rank": rank, "world_size": world_size, "scratch": str(scratch), **patience, **more}


def line(step: int, *, dur_ns: int = 100, phase: str = "before", profiled: bool = False) -> str:
    return json.dumps({"step": step, "dur_ns": dur_ns, "device_ns": None, "phase": phase, "profiled": profiled})


def open_box(tmp_path: Path, **more: Any) -> tuple[Outbox, Path]:
    replies: queue.Queue[dict[str, Any]] = queue.Queue()
    box = Outbox(on_reply=replies.put, settings=settings(tmp_path / "scratch", **more))
    box.put_step('{"schema": 1}')
    box.put({"do": "claim", "out": str(tmp_path / "run"), "run_id": "a"})
    return box, Path(replies.get(timeout=HANG_S)["folder"])


def wait_until(what: Any, within_s: float = HANG_S) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_T8_helper_that_is_killed_costs_nothing_but_the_rest(tmp_path: Path) -> None:
    box, folder = open_box(tmp_path)
    os.kill(box.helper_pid, signal.SIGKILL)

    def dropped() -> int:
        box.put_step(line(1))
        return box.dropped

    wait_until(dropped)
    box.finish(own_wait_s=5, grace_s=5)
    assert not (folder / "run.json").exists()


@pytest.mark.slow
def test_T6_stopped_helper_never_blocks_and_memory_stays_bounded(tmp_path: Path) -> None:
    box, folder = open_box(tmp_path)
    os.kill(box.helper_pid, signal.SIGSTOP)
    long_line = line(1)[:-1] + f', "x": "{"y" * 900}"}}'
    for _ in range(4_000):
        box.put_step(long_line)
    assert box.dropped > 0 and len(box._held) <= 1 << 20
    assert not box.finish(own_wait_s=0.2, grace_s=0.1)  # it returns although nobody reads
    os.kill(box.helper_pid, signal.SIGCONT)
    wait_until(lambda: (folder / "run.json").exists())
    entries = (folder / "rank00000.steps.jsonl").read_text().splitlines()
    assert len(entries) + box.dropped == 4_001
    assert all(json.loads(entry) for entry in entries)


def test_missing_ranks_are_named_after_the_wait(tmp_path: Path) -> None:
    box, folder = open_box(tmp_path, world_size=3)
    box.put({"do": "close"})
    assert box.finish(own_wait_s=30, grace_s=10)
    assert json.loads((folder / "run.json").read_text())["missing_ranks"] == [1, 2]


def test_steps_before_the_window_are_the_unprofiled_ones_and_those_after_are_compared() -> None:
    for slower, is_beyond in ((1.0, False), (1.2, True)):
        steps = StepStatistics()
        for step in range(60):
            phase = "before" if step < 20 else "window" if step < 25 else "after"
            dur = round((1000 + step % 3) * (slower if phase == "after" else 1))
            steps.add(json.loads(line(step, dur_ns=dur, phase=phase, profiled=phase == "window")))
        found = steps.summary()
        assert (found["unprofiled"]["median_ns"], found["unprofiled_from"]) == (1001, "before")
        compared = found["after_to_before"]
        assert compared["ratio"] == pytest.approx(slower, rel=0.01)
        assert (compared["low"] > 1.1) == is_beyond


def test_a_helper_that_cannot_start_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", write_program(tmp_path / "python", "#!/bin/sh\nexit 7\n"))
    replies: queue.Queue[dict[str, Any]] = queue.Queue()
    box = Outbox(on_reply=replies.put, settings=settings(tmp_path / "scratch"))
    said = replies.get(timeout=HANG_S)
    assert said == {"error": f"the process that writes the run ended with code 7 ({tmp_path / 'python'})"}
    box.put({"do": "facts"})
    assert box.finish(own_wait_s=HANG_S, grace_s=HANG_S)


def write_program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_run_json_of_a_running_job_waits_for_the_same_window_of_other_ranks(tmp_path: Path) -> None:
    box, folder = open_box(tmp_path, world_size=2, other_ranks_wait_s=HANG_S)
    other = Outbox(on_reply=lambda _: None, settings=settings(tmp_path / "scratch1", rank=1, world_size=2))
    other.put({"do": "run", "folder": str(folder)})

    def report(of: Outbox, windows: int) -> None:
        said = [{"window": n, "first_step": n, "last_step": n + 1, "cut": None} for n in range(windows)]
        of.put({"do": "facts", "windows": said, "window_complete": True})

    def windows_of(rank: int) -> list[int]:
        path = folder / "run.json"
        windows = json.loads(path.read_text())["windows"] if path.exists() else []
        return [one["window"] for one in windows if str(rank) in one["ranks"]]

    for one in (other, box):
        report(one, windows=1)
    wait_until(lambda: windows_of(1) == [0])
    report(box, windows=2)
    time.sleep(0.5)
    report(other, windows=2)
    wait_until(lambda: windows_of(1) == [0, 1])
    for one in (other, box):
        one.put({"do": "close"})
        one.finish(own_wait_s=30, grace_s=30)
