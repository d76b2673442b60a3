"""Real trials: a slow loader is found and its workers help, every timed step is in the log, no process stays behind."""

import sys
from pathlib import Path

import pytest

from stepscope.cli.tune import FirstRun, Trials, first_run
from stepscope.record.launch.launch import BoundedRun, processes_of
from stepscope.tune.experiment import Trial, candidates

pytest.importorskip("torch")
pytestmark = [pytest.mark.job, pytest.mark.slow]
SLOW_LOADER = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.full((8,), i / 1000), i % 4

torch.set_num_threads(1)
model = nn.Linear(8, 4)  # no seed is set
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(Slow(), batch_size=8):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WARMUP, STEPS = 2, 8


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[FirstRun, Trials, list[Trial]]:
    folder = tmp_path_factory.mktemp("tune")
    script = folder / "train.py"
    script.write_text(SLOW_LOADER)
    first = first_run([sys.executable, str(script)], folder)
    workers = candidates(first.job, [f["id"] for f in first.findings], only=["loader.num_workers"]).tried[0]
    trials = Trials([sys.executable, str(script)], folder, steps=STEPS, warmup=WARMUP, limit_s=600)
    return first, trials, [trials("a", None), trials("b", workers)]


def test_the_first_run_names_the_loader(tuned: tuple[FirstRun, Trials, list[Trial]]) -> None:
    first = tuned[0]
    assert first.findings[0]["id"] == "data-loading" and first.job.loaders[0].num_workers == 0
    assert first.job.optimizer == "SGD" and first.job.device == "cpu"


def test_workers_help_with_equal_losses(tuned: tuple[FirstRun, Trials, list[Trial]]) -> None:
    unchanged, helped = tuned[2]
    assert unchanged.failed is None and helped.failed is None
    assert helped.took == ("loader.num_workers",)
    assert unchanged.losses == helped.losses and len(unchanged.losses) == WARMUP + STEPS
    assert unchanged.parameters == helped.parameters is not None
    assert helped.step_ms is not None and unchanged.step_ms is not None
    assert unchanged.step_ms >= 8 * 20  # what it sleeps, which no load makes shorter


def test_every_timed_step_is_in_the_log_and_nothing_else_runs(tuned: tuple[FirstRun, Trials, list[Trial]]) -> None:
    _, trials, found = tuned
    assert [trial.steps for trial in found] == [STEPS, STEPS]
    assert [one["step_ms"] for one in trials.records] == [trial.step_ms for trial in found]


def test_a_job_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    runner = BoundedRun(tmp_path / "log", limit_s=1.0, run_id="trial-that-hangs")
    code = runner([sys.executable, "-S", "-c", script], {"STEPSCOPE_RECORD": '{"run_id": "trial-that-hangs"}'})
    assert runner.timed_out and code != 0
    assert processes_of("trial-that-hangs") == []
