"""What a shell makes its commands ignore is ignored by the job and the helper as well; `nohup` is such a shell."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.limits import HANG_S

STEPSCOPE = [sys.executable, "-m", "stepscope"]
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)
NOTES = """
import os, sys
def note(name, pid="self"):
    line = next(line for line in open(f"/proc/{pid}/status") if line.startswith("SigIgn"))
    place = f"{os.environ['NOTES']}/{name}"
    open(place + ".new", "w").write(line.split()[1])
    os.replace(place + ".new", place)
"""
JOB = [sys.executable, "job.py"]
TRAINING = """
import time
import torch
from stepscope.record.session import current
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
note("helper", current()._run.outbox.helper_pid)
"""
COMMANDS = {
    "job": [*STEPSCOPE, "record", "--", *JOB],
    "helper": [*STEPSCOPE, "record", "--", *JOB],
    "tune": [*STEPSCOPE, "tune", "--", *JOB],
    "gate": [*STEPSCOPE, "gate", "--base", " ".join(JOB), "--head", " ".join(JOB)],
    "bench": [*STEPSCOPE, "bench", "ddp", "--steps", "1", "--warmup-steps", "1", "--out", "results"],
}


@pytest.mark.job
@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the dispositions")
@pytest.mark.parametrize("name", COMMANDS)
def test_T36_ignored_signals_stay_ignored(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(NOTES + (TRAINING if name == "helper" else "note('job')"))
    (tmp_path / "sitecustomize.py").write_text(
        NOTES + "if any(w.endswith('.bench.rank') for w in sys.orig_argv): note('bench')"
    )
    noted = tmp_path / (name if name in ("helper", "bench") else "job")

    def ignore() -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)

    path = {"PYTHONPATH": str(tmp_path)} if name == "bench" else {}
    environ = {**os.environ, **path, "NOTES": str(tmp_path), "TMPDIR": str(tmp_path)}
    options = {"cwd": tmp_path, "env": environ, "stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    command = subprocess.Popen(COMMANDS[name], preexec_fn=ignore, **options)  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + HANG_S
        while not noted.exists() and command.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert noted.exists(), command.stderr.read()
    finally:
        command.kill()
        command.communicate()
    mask = int(noted.read_text(), 16)
    assert [number.name for number in IGNORED if not mask >> (number - 1) & 1] == []


@pytest.mark.job
def test_T36_a_job_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    waits = "print('ready', flush=True); input(); print('end')"
    command = ["nohup", *STEPSCOPE, "record", "--", sys.executable, "-c", waits]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen(command, cwd=tmp_path, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
    assert job.stdout.readline() == "ready\n"
    os.killpg(job.pid, signal.SIGHUP)
    assert "end\n" in job.communicate("\n", timeout=HANG_S)[0]
    assert job.returncode == 0
