"""Steps that move from thread to thread: a profiler left on a thread must never take the process down."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.job

JOB = """
import sys, threading, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
def elsewhere(steps):
    thread = threading.Thread(target=train, args=(steps,))
    thread.start()
    thread.join()
for word in sys.argv[1:]:
    where, _, steps = word.partition(":")
    (train if where == "main" else elsewhere)(int(steps))
print("trained", flush=True)
"""
SEVERAL = "no trace: the steps run in several threads, and only the one that started the profiler could stop it"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["thread:1"] * 9, SEVERAL),
        (["thread:7"], "recorded 7 steps of 1 rank, profiled steps 5-5 of 1 rank"),  # ends inside the window
        (["main:6", "thread:4"], SEVERAL),
        (["main:2", "thread:8"], "recorded 10 steps of 1 rank, profiled steps 5-7 of 1 rank"),  # before the window
        (["main:9", "thread:4"], "recorded 13 steps of 1 rank, profiled steps 5-7 of 1 rank"),  # while one is counted
    ],
)
def test_steps_in_several_threads_do_not_crash_the_job(words: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--steps", "5:8"]
    job = [*record, "--", sys.executable, "job.py", *words]
    done = subprocess.run(job, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


AT_ONCE = """
import threading, torch
torch.set_num_threads(1)
def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(300):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
threads = [threading.Thread(target=train) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("trained", flush=True)
"""


def test_two_threads_that_train_at_once_are_one_run_without_a_failure(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(AT_ONCE)
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--light", "--out", "run"]
    done = subprocess.run([*record, "--", sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "no longer followed" not in done.stderr and "recording stopped" not in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]
