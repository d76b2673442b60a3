"""Jobs that run in turn: one takes steps while the other is stopped, and none outlives the controller."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from tests.record.script_runs import step_lines
from tests.two_ranks import on_two_ranks

from stepscope.lab.cli.trials import run_trial
from stepscope.record.launch.launch import end_processes_of, processes_of
from stepscope.record.turns import Turns, TurnsError

TURN, ROUNDS = 4, 3


def states(address: str) -> set[str]:
    """Return the states of a job's processes, e.g. T for stopped."""
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in processes_of(address)}


@pytest.mark.job
def test_ranks_of_two_jobs_take_turns(tmp_path: Path) -> None:
    addresses = {}

    def job(side: str, address: str) -> tuple[Path | None, str | None]:
        addresses[side] = address
        command = on_two_ranks(Path(__file__).with_name("ddp_job.py"))
        return run_trial(command, tmp_path / f"{side}.log", steps=100_000, limit_s=500, turn_address=address)

    with Turns([partial(job, side) for side in "ab"]) as turns:
        assert turns.step_ns > 0
        for _ in range(ROUNDS):
            for k in (0, 1):
                turns.run(k, TURN)
                while any(states(address) != {"T"} for address in addresses.values()):
                    time.sleep(0.05)  # a process stops when it is next on a core
    assert not any(map(processes_of, addresses.values()))
    spans = []
    for folder, ended in turns.outcomes:
        assert folder is not None and ended is None
        for rank in (0, 1):
            steps = step_lines(folder, rank)
            assert len(steps) == 2 + ROUNDS * TURN
            assert all(step["cpu"]["delay_ns"] >= 0 for step in steps[1:])
            own = [steps[2 + TURN * k : 2 + TURN * (k + 1)] for k in range(ROUNDS)]
            spans += [(turn[0]["start_ns"], turn[-1]["end_ns"], folder) for turn in own]
    spans.sort(key=lambda span: span[0])
    order = [folder for _, _, folder in spans]
    assert order == [folder for _ in range(ROUNDS) for folder, _ in turns.outcomes for _ in (0, 1)]
    assert all(one[1] <= other[0] for one, other in zip(spans, spans[2:], strict=False) if one[2] != other[2])


RANK = """
import os
MORE = {}
from stepscope.record.turns import steps_of_turn
report = {"world_size": 1, "pid": os.getpid(), "step_ns": 1, "on_device": False, "retries": 0, **MORE}
while steps_of_turn(os.environ["TURNS"], **report):
    pass
"""
CONTROLLER = f"""
import os, subprocess, sys, time
from stepscope.record.turns import Turns
def job(address):
    subprocess.run([sys.executable, "-c", {RANK!r}], env={{**os.environ, "TURNS": address}})
with Turns([job, job]) as turns:
    turns.run(0, 1)
    print(turns._folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.job
@pytest.mark.parametrize("ended_by", ["SIGKILL", "SIGINT"])
def test_stopped_jobs_end_with_their_controller(ended_by: str) -> None:
    with subprocess.Popen([sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout
        folder = controller.stdout.readline().strip()
        assert len(processes_of(folder)) == 2
        controller.send_signal(getattr(signal, ended_by))
    while processes_of(folder):
        time.sleep(0.05)


def job_of(script: str, address: str) -> None:
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TURNS": address}, check=False)


@pytest.mark.job
def test_ranks_on_a_gpu_wait_and_only_their_children_are_stopped() -> None:
    child = "import subprocess; subprocess.Popen(['sleep', '600']); MORE = {'on_device': True}"
    addresses: list[str] = []

    def job(address: str) -> None:
        addresses.append(address)
        job_of(RANK.replace("MORE = {}", child), address)

    with Turns([job, job]) as turns:
        for k in (0, 1, 1):
            turns.run(k, 1)
            while any(states(address) != {"S", "T"} for address in addresses):
                time.sleep(0.05)
    for address in addresses:
        end_processes_of(address)


@pytest.mark.job
def test_jobs_that_do_not_fit_into_memory_together_take_no_turns() -> None:
    short = partial(job_of, RANK.replace("MORE = {}", "MORE = {'on_device': True, 'retries': 1}"))
    with pytest.raises(TurnsError, match="memory"), Turns([partial(job_of, RANK), short]):
        pass
