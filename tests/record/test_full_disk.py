"""Storage that is full for a while costs nothing; what could never be written is counted and told.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.limits import HANG_S
from tests.record.script_runs import TRAIN, recorded

from stepscope.record.helper import open_run as outbox, writer as growing_log
from stepscope.record.helper.scratch import make_scratch
from stepscope.record.helper.writer import GrowingLog, Writer
from stepscope.record.launch.launch import recorded_in, trouble_of_helpers

FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """Lets writes through, or fails them as a full disk does: after some bytes, then altogether."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room_bytes: int | None = None
        self._write, self._fsync = os.write, os.fsync
        monkeypatch.setattr("stepscope.record.helper.writer.os.write", self.write)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def write(self, fd: int, data: bytes) -> int:
        if self.room_bytes is None:
            return self._write(fd, data)
        if not self.room_bytes:
            raise FULL
        done = self._write(fd, data[: self.room_bytes])
        self.room_bytes -= done
        return done

    def fsync(self, fd: int) -> None:
        if self.room_bytes is not None:
            raise FULL
        self._fsync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_line_cut_by_the_full_disk_is_taken_back(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_log, "MAX_WAITING_BYTES", 40)
    log = GrowingLog(tmp_path / "log")
    log.add(b"whole")
    log.flush()
    disk.room_bytes = 4
    kept = [log.add(b"line %d" % number) for number in range(9)]
    with pytest.raises(OSError, match="No space"):
        log.flush()
    assert log.close() == 9 and not all(kept)
    assert (tmp_path / "log").read_bytes() == b"whole\n"


def test_T32_helper_goes_on_when_there_is_room_again(disk: Disk, tmp_path: Path) -> None:
    def said(kind: bytes, **what: Any) -> bytes:
        return kind + json.dumps(what).encode()

    scratch, run, name = make_scratch(str(tmp_path)), tmp_path / "run", "rank00000.pt.trace.json.gz"
    helper = Writer(
        {"rank": 0, "world_size": 1, "scratch": str(scratch), "other_ranks_wait_s": 1, "write_timeout_s": 60}
    )
    helper.take(said(b"m", do="claim", out=str(run), run_id="a"))
    (plain := scratch / "window0.json").write_text('{"traceEvents": []}')
    disk.room_bytes = 30
    for number in range(20):
        helper.take(said(b"s", step=number, dur_ns=5, phase="before", profiled=False))
        helper._flush_log()
        if number == 5:
            helper.take(said(b"m", do="trace", plain=str(plain), name=name, about={"kind": "trace", "window": 0}))
            helper.take(said(b"m", do="facts", window_complete=True))
    assert helper.retries.failed_writes > 10
    threading.Timer(0.5, lambda: setattr(disk, "room_bytes", None)).start()
    helper.finish()
    assert len((run / "rank00000.steps.jsonl").read_text().splitlines()) == 20 and (run / name).exists()
    assert "nothing was lost" in str(recorded_in(run).not_written)


JOB = f"""
{TRAIN}
folder = sys.argv[1]
def fill(step):
    time.sleep(0.02)
    if step == 15:
        while not os.path.exists(folder + "/run/rank00000.steps.jsonl"):
            time.sleep(0.05)
        with open(folder + "/ballast", "wb", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(1 << 12))
            except OSError:
                pass
    if step == 70:
        os.unlink(folder + "/ballast")
train(80, fill)
print("trained")
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    (folder := tmp_path / "small").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.job
def test_T5_a_disk_that_stays_full_is_named_at_the_end(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.replace("step == 70", "False"))
    command = [sys.executable, str(tmp_path / "job.py"), str(small_disk)]
    done = recorded(small_disk, command, "--steps", "20:22")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "the run is incomplete: writing failed: No space left on device; a helper process keeps" in done.stderr
    assert "no trace: writing failed: No space left on device" in done.stderr


def test_T5_storage_that_fails_does_not_hold_up_the_end_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"storage": "No space left on device"})

    def start(_: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-c", f"import time; print({answer!r}, flush=True); time.sleep({2 * HANG_S})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    monkeypatch.setattr(outbox, "_start_helper", start)
    box = outbox.Outbox(on_reply=lambda _: None, settings={})
    try:
        assert not box.finish(own_wait_s=2 * HANG_S, grace_s=2 * HANG_S)
    finally:
        os.kill(box.helper_pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("left", "trouble"),
    [
        ([], None),
        (["helper.{ended}", "helper.{ended}.done"], None),
        (["helper.{ended}"], "the helper process of rank 1 was killed"),
        (["helper.{alive}", "helper.{alive}.closed"], "the helper process that writes the run is still at work"),
        (["helper.{ended}", "helper.{ended}.errno28", "helper.{ended}.done"], "what was not written is lost"),
        (["helper.{alive}", "helper.{alive}.errno28", "helper.{ended}"], "No space left on device; a helper process"),
    ],
)
def test_T35_trouble_of_helpers(left: list[str], trouble: str | None, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in left:
        (tmp_path / name.format(ended=ended.pid, alive=os.getpid())).write_text("1")
    found = trouble_of_helpers(tmp_path)
    assert found is None if trouble is None else trouble in str(found)


@pytest.mark.job
def test_T32_recording_survives_a_real_disk_that_is_full_for_a_while(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, str(tmp_path / "job.py"), str(small_disk)]
    done = recorded(small_disk, command, "--steps", "20:22")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "recorded 80 steps of 1 rank, profiled steps 20-21 of 1 rank" in done.stderr, done.stderr
    assert "No space left on device) and was tried again; nothing was lost" in done.stderr
    assert not list(small_disk.rglob("*.tmp"))
    assert json.loads((small_disk / "run" / "run.json").read_text())["ranks"]["0"]["writing"]["failed_writes"] > 0
