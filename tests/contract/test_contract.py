"""What both sides share: collectives, live requests, region names, run folders, step lines."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.contract.live import (
    LIVE_FOLDER,
    MAX_ASKED_STEPS,
    PLAN,
    REQUEST,
    read_plan,
    read_request,
    read_status,
    status_file,
)
from stepscope.contract.run_folder import atomic_write
from stepscope.contract.step_line import BEFORE, FORWARD, WARMUP, Region, StepLine, named_region
from stepscope.record.steps import StepLog
from stepscope.run.side_files import step_log_of


def left(folder: Path, name: str, content: Any) -> Path:
    (folder / LIVE_FOLDER).mkdir(exist_ok=True)
    (folder / LIVE_FOLDER / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", {}, {"id": "a"}, *({"id": "a", "steps": n} for n in (0, -1, True, 1.5, "5", MAX_ASKED_STEPS + 1))],
)
def test_request_of_another_kind_is_none(tmp_path: Path, content: Any) -> None:
    assert read_request(left(tmp_path, REQUEST, content)) is None


@pytest.mark.parametrize(
    "change",
    [{"first": -1}, {"last": 12}, {"last": 10**7}, {"warmup": 13}, {"window": None}, {"first": "12"}, {"id": 7}],
)
def test_plan_that_cannot_be_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    plan = {"id": "a", "first": 12, "last": 14, "warmup": 2, "window": 1}
    assert read_plan(left(tmp_path, PLAN, {**plan, **change})) is None


def test_what_a_rank_says_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    frames = [["/a/train.py", 4, "main"], ["x"], 7, ["y", "z", None]]
    stall = {"step": 7, "for_s": 2.5, "usual_s": "x", "frames": frames, "region": 3, "sequence": -1}
    left(tmp_path, status_file(3), {"step": 7, "step_s": 1e999, "answered": "a", "stall": stall})
    said = read_status(tmp_path, 3)
    assert said is not None and said.step == 7 and said.step_s is None and said.answered == "a"
    assert said.stall is not None and said.stall.for_s == 2.5 and said.stall.usual_s == 0
    assert [(f.file, f.line, f.function) for f in said.stall.frames] == [("/a/train.py", 4, "main"), ("y", 0, "?")]
    assert said.stall.region is None and said.stall.sequence is None
    assert read_status(tmp_path, 4) is None


USUAL = {
    Region.FORWARD: ("forward", "DistributedDataParallel.forward", "FSDP::post_forward (layers.0)", "PP:0F12"),
    Region.BACKWARD: (
        "[pl][profile][Strategy]DDPStrategy.backward", "FSDP::post_backward_reduce (blocks.5)", "PP:1W3",
    ),
    Region.OPTIMIZER: ("Optimizer.step#AdamW.step", "DeepSpeedEngine.step"),
    Region.DATA: (
        "data_loading", "## wait_for_batch ##", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    ),
    Region.OTHER: ("gradient_sync",),
    None: ("step_12", "ProfilerStep#3", "nccl:all_reduce", "FSDP::all_gather (blocks.5)"),
}  # fmt: skip


@pytest.mark.parametrize("region", USUAL)
def test_usual_names_mean_their_part(region):
    assert {name: named_region(name) for name in USUAL[region]} == dict.fromkeys(USUAL[region], region)


def test_file_appears_only_when_all_was_written(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    with atomic_write(target) as f:
        f.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out.json"]


REGIONS = {FORWARD: {"ns": 40, "n": 1}}


def written() -> list[dict[str, Any]]:
    """Return the lines of a step that was followed and of one that was only timed."""
    lines: list[str] = []
    log = StepLog(lambda *texts: lines.extend(texts), None)
    log.add({"step": 0, "dur_ns": 100, "profiled": False, "phase": WARMUP, "regions": REGIONS, "late_ns": 0})
    log.add_past([(5_200, REGIONS, log.mark_end())], first=1, start_ns=5_000, phase=BEFORE)
    log.flush()
    return [json.loads(line) for line in lines]


def test_every_line_has_what_the_contract_says() -> None:
    for line in written():
        assert StepLine.__required_keys__ <= set(line) <= StepLine.__required_keys__ | {"cpu"}


def test_desk_reads_them() -> None:
    log = step_log_of(written(), rank=0)
    assert log.dur_ns.tolist() == [100, 200]
    assert log.column(f"regions.{FORWARD}.ns").tolist() == [40, 40]
    assert log.unprofiled.tolist() == [False, False]  # the profiler's warm-up, and the step right after it


WRITER = """
import sys, time
from stepscope.contract.run_folder import atomic_write
with atomic_write(sys.argv[1]) as f:
    f.write(b"new" * 100_000)
    f.flush()
    print("half", flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_leaves_the_old_file_whole(tmp_path: Path) -> None:
    (target := tmp_path / "report.json").write_text("old")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"half\n"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    left = [p.name for p in tmp_path.iterdir() if p != target]
    assert all(name.startswith(".report.json.") and name.endswith(".tmp") for name in left)
