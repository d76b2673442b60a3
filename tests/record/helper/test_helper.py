"""The helper process: lines, messages, clocks, run.json, scratch folders, and what it does when the job dies.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.limits import HANG_S, until

from stepscope.record.helper.open_run import Outbox
from stepscope.record.helper.scratch import MARKER, make_scratch, remove_scratch, sweep_scratch
from stepscope.record.helper.side_channel import SideChannel, ask, register, serve
from stepscope.record.helper.writer import run_description
from stepscope.record.step_statistics import StepStatistics
from stepscope.record.window.kineto import launch_ns

AHEAD_NS = 37_123_000


def probed(store: Any, *, ahead_ns: int) -> list[dict[str, Any] | None]:
    """Return what two ranks on other hosts find, rank 0's clock being ahead."""
    here, there = SideChannel(store), SideChannel(store)
    numbers = [register(there, rank=r) for r in (8, 16)]
    server = threading.Thread(
        target=serve, args=(here,), kwargs={"when": "before", "clock": lambda: time.time_ns() + ahead_ns}
    )
    server.start()
    found = [ask(there, number=n, when="before") for n in numbers]
    server.join()
    return found


def test_works_over_the_store_that_jobs_have():
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False)
    for probe in probed(client, ahead_ns=AHEAD_NS):
        assert probe is not None and abs(probe["offset_ns"] - AHEAD_NS) <= probe["uncertainty_ns"]


def facts(rank: int, **more: Any) -> dict[str, Any]:
    steps = {"count": 9, "last": 8, "before": None, "window": None, "after": None, "unprofiled": None}
    return {"rank": rank, "created_ns": 10**18 + rank, "host": f"node{rank // 2}", "files": [], "steps": steps, **more}


def test_flops_are_those_of_the_whole_job_without_recomputation():
    plain = facts(0, flops={"events": 1, "total": 290, "forward": 100})
    checkpointed = facts(1, flops={"events": 1, "total": 400, "forward": 100})
    run = run_description([plain, checkpointed], world_size=2, ended=True)
    assert run["flops_per_step"] == 290 + 300
    assert run["hardware_flops_per_step"] == 690


def test_tokens_of_one_replica_count_once():
    found = [facts(r, tokens_per_step=1000, ranks_per_replica=2) for r in range(4)]
    assert run_description(found, world_size=4, ended=True)["tokens_per_step"] == 2000


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


def test_T8_helper_that_is_killed_costs_nothing_but_the_rest(tmp_path):
    box, folder = open_box(tmp_path)
    box.put_step(line(0))
    log = folder / "rank00000.steps.jsonl"
    until(lambda: log.read_text().count("\n") == 2)
    os.kill(box.helper_pid, signal.SIGKILL)

    def dropped() -> int:
        box.put_step(line(1))
        return box.dropped

    until(dropped)
    box.finish(own_wait_s=5, grace_s=5)
    assert not (folder / "run.json").exists()
    assert json.loads(log.read_text().splitlines()[1])["step"] == 0


def test_T9_rank_killed_before_it_knows_the_folder_is_named(tmp_path):
    launch = {"out": str(tmp_path / "run"), "launch_id": "b", "attempt": "0"}
    boxes = []
    for rank in (1, 0):
        more = {"rank": rank, "world_size": 2, "other_ranks_wait_s": HANG_S}
        boxes.append(Outbox(on_reply=lambda _: None, settings=settings(tmp_path / f"scratch{rank}", **more)))
        boxes[-1].put({"do": "launch", **launch})
        boxes[-1].put_step('{"schema": 1}', *map(line, range(3)))
    boxes[0]._close_pipe()  # as the end of its process does
    boxes[1].put({"do": "claim", "run_id": "a", **launch})
    until(lambda: (tmp_path / "run" / "rank00001.facts.jsonl").exists())
    boxes[1].put({"do": "close"})
    assert boxes[1].finish(own_wait_s=HANG_S, grace_s=HANG_S)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["ranks"]["1"]["steps"]["count"] == 3 and run["missing_ranks"] == []
    assert run["warnings"] == ["rank 1 was killed, after 3 steps"]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([("killed", 900, None), ("killed", 100, None)], ["rank 1 was killed first, after 9 steps"]),
        ([("killed", 900, None), ("closed", 100, "ValueError")], ["rank 1 failed with ValueError, after 9 steps"]),
        ([("killed", 100, None), ("killed", 101, None)], ["2 ranks were killed at the same time, after 9 steps"]),
        ([("closed", 900, None), ("killed", 100, None)], ["rank 1 was killed, after 9 steps"]),
    ],
)
def test_T9_rank_killed_first_is_named(ends, said):
    found = [facts(k, ended=how, ended_ns=10**6 * ms, failure=why) for k, (how, ms, why) in enumerate(ends)]
    run = run_description(found, world_size=2, ended=True)
    assert run["warnings"] == said and run["ended"] and not run["finished"]


@pytest.mark.slow
def test_T6_stopped_helper_never_blocks_and_memory_stays_bounded(tmp_path):
    box, folder = open_box(tmp_path)
    os.kill(box.helper_pid, signal.SIGSTOP)
    long_line = line(1)[:-1] + f', "x": "{"y" * 900}"}}'
    for _ in range(4_000):
        box.put_step(long_line)
    assert box.dropped > 0 and len(box._held) <= 1 << 20
    assert not box.finish(own_wait_s=0.2, grace_s=0.1)  # it returns although nobody reads
    os.kill(box.helper_pid, signal.SIGCONT)
    until(lambda: (folder / "run.json").exists())
    entries = (folder / "rank00000.steps.jsonl").read_text().splitlines()
    assert len(entries) + box.dropped == 4_001
    assert all(json.loads(entry) for entry in entries)


def test_steps_before_the_window_are_the_unprofiled_ones_and_those_after_are_compared():
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


@pytest.mark.parametrize(
    ("launches", "is_attached"),
    [
        (({"before": 6_000, "after": 9_400}, {"before": 5_800, "after": 9_000}), True),
        (({"before": 6_000, "after": 6_300}, {"before": 5_800, "after": 5_500}), False),  # the steps vary by themselves
        (({"before": 6_000, "after": 9_400}, {"before": 5_800, "after": 5_500}), False),  # half of them only
        (({"before": 6_000}, None), False),  # not known
    ],
)
def test_launches_and_not_steps_show_that_the_profiler_is_still_attached(launches, is_attached):
    longer = {"ratio": 1.3, "low": 1.2, "high": 1.4, "why": None}
    found = [facts(rank, device={"kind": "cuda"}, launch_ns=taken) for rank, taken in enumerate(launches)]
    for one in found:
        one["steps"]["after_to_before"] = longer
    run = run_description(found, world_size=2, ended=True)
    (said,) = run["warnings"]
    assert said.startswith("steps after the window are 30.0 % longer")
    assert ("a launch takes 9.2 us, 5.9 before: CUPTI is still attached" in said) == is_attached
    assert is_attached or "the job changed on the way" in said
    assert run["ranks"]["0"]["launch_ns"] == launches[0]


def test_the_median_launch_counts_and_the_first_ones_do_not(monkeypatch):
    now_ns, taken_ns = 0, iter([50_000] * 8 + [6_000] * 15 + [7_000] * 2 + [90_000] * 15)

    def launch() -> None:
        nonlocal now_ns
        now_ns += next(taken_ns)

    monkeypatch.setattr("stepscope.record.window.kineto.perf_counter_ns", lambda: now_ns)
    assert launch_ns(launch) == 7_000 and next(taken_ns, None) is None


def test_a_helper_that_cannot_start_says_so_at_once(tmp_path, monkeypatch):
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


OWNER = """
import sys, time
from stepscope.record.helper.scratch import make_scratch
print(make_scratch(sys.argv[1]), flush=True)
time.sleep(600)
"""


def owner_of_one(parent: Path) -> tuple["subprocess.Popen[str]", Path]:
    """Return a process that owns a scratch folder below `parent`, and that folder."""
    command = [sys.executable, "-c", OWNER, str(parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_T33_a_marker_that_is_not_ours_protects_its_folder(tmp_path):
    real = make_scratch(str(tmp_path))
    marker = (real / MARKER).read_bytes()
    for name, make in (
        ("stepscope-empty", lambda path: path.touch()),
        ("stepscope-link", lambda path: path.symlink_to(real / MARKER)),
        ("stepscope-pipe", lambda path: os.mkfifo(path)),
        ("stepscope-folder", lambda path: path.mkdir()),
    ):
        (tmp_path / name).mkdir()
        make(tmp_path / name / MARKER)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / MARKER).write_bytes(marker)
    (tmp_path / "stepscope-linked").symlink_to(tmp_path / "elsewhere")
    assert sweep_scratch(tmp_path) == []
    assert (tmp_path / "elsewhere" / MARKER).exists()
    remove_scratch(real)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_T33_a_folder_of_another_user_is_kept(tmp_path):
    process, folder = owner_of_one(tmp_path)
    process.kill()
    process.wait()
    os.chown(folder, 12345, 12345)
    assert sweep_scratch(tmp_path) == []
    os.chown(folder, 0, 0)
    assert sweep_scratch(tmp_path) == [folder.name]


def test_T8_scratch_of_a_killed_job_is_swept_and_of_a_living_one_kept(tmp_path):
    process, folder = owner_of_one(tmp_path)
    (folder / "window0.json.tmp").touch()
    mine = make_scratch(str(tmp_path))
    assert folder.is_dir()  # by its lock alone: nothing in its name says who lives
    process.send_signal(signal.SIGKILL)
    process.wait()
    later = make_scratch(str(tmp_path))
    assert not folder.exists() and mine.is_dir()
    for path in (mine, later):
        remove_scratch(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.job
def test_T33_record_runs_beside_them_and_without_a_temporary_folder(tmp_path):
    theirs = tmp_path / "tmp" / "stepscope-12345678901234567890-mine"
    theirs.mkdir(parents=True)
    command = [sys.executable, "-m", "stepscope.cli.main", "record", "--", sys.executable, "-c", "print('ran')"]
    for folder in (tmp_path / "tmp", tmp_path / "none"):
        environ = {**os.environ, "TMPDIR": str(folder)}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert theirs.is_dir() and [p.name for p in (tmp_path / "tmp").iterdir()] == [theirs.name]
