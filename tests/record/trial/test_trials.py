"""Trials of settings: put in only where the script left them free, every timed step logged, no process left behind."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stepscope.contract.live import TRIAL
from stepscope.contract.run_folder import rank_file
from stepscope.lab.cli.tune import Trials, first_run
from stepscope.lab.experiment import Trial
from stepscope.lab.tune import ROUNDING, Candidate, candidates
from stepscope.record.hooks.patches import Patches
from stepscope.record.launch.launch import BoundedRun, processes_of
from stepscope.record.trial import Settings, TrialResults
from stepscope.records import Row


@pytest.fixture
def patches() -> Iterator[Patches]:
    made = Patches()
    yield made
    made.undo()


DATA = TensorDataset(torch.zeros(8, 2))


def test_loader_gets_workers_and_what_needs_them(patches):
    wanted = {"loader.num_workers": 2, "loader.persistent_workers": True, "loader.prefetch_factor": 3}
    settings = Settings(wanted)
    settings.apply(patches)
    loader = DataLoader(DATA, 4)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor, loader.batch_size) == (2, True, 3, 4)
    assert set(settings.took) == set(wanted)
    assert settings.loaders[0]["num_workers"] == 0


@pytest.mark.parametrize(
    ("options", "fused"),
    [({}, True), ({"foreach": True}, None), ({"fused": False}, False), ({"capturable": True}, None)],
)
def test_optimizer_is_fused_where_the_script_did_not_choose(patches, options, fused):
    settings = Settings({"optimizer.fused": True})
    settings.apply(patches)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, **options)  # a generator, which is read once
    assert optimizer.param_groups[0]["fused"] is fused and len(optimizer.param_groups[0]["params"]) == 2
    assert bool(settings.took) == (fused is True)


def test_switches_are_set_again_after_the_script_set_them(patches):
    before = torch.backends.cudnn.benchmark
    settings = Settings({"cudnn.benchmark": True})
    settings.apply(patches)
    torch.backends.cudnn.benchmark = False
    settings.set_switches()
    assert torch.backends.cudnn.benchmark is True and settings.took == ["cudnn.benchmark"]
    torch.backends.cudnn.benchmark = before


def test_losses_are_kept_and_a_trial_writes_what_it_computed(patches, tmp_path):
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    results = TrialResults(Settings({}), optimizer=lambda: optimizer, model=lambda: model)
    results.install(patches)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(torch.ones(1, 2)).expand(1, 2).backward(torch.ones(1, 2))  # no loss: more than one element
    torch.tensor(float("inf"), requires_grad=True).backward()
    results.on_close(tmp_path, 3)
    found = json.loads((tmp_path / rank_file(3, TRIAL)).read_text())
    assert found["losses"] == [4.0, 3.0, None]
    assert found["parameters"] == {"sum": 2.0, "size": 2.0}
    assert found["optimizer"]["name"] == "SGD" and found["convolutions"] is False


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
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, Trials, list[Trial]]:
    folder = tmp_path_factory.mktemp("tune")
    (script := folder / "train.py").write_text(SLOW_LOADER)
    first = first_run([sys.executable, str(script)], folder)
    workers = candidates(first.job, [f["id"] for f in first.findings], only=["loader.num_workers"]).tried[0]
    trials = Trials([sys.executable, str(script)], folder, steps=STEPS, warmup=WARMUP, limit_s=600)
    return first, trials, [trials("a", None), trials("b", workers)]


@pytest.mark.job
@pytest.mark.slow
def test_the_first_run_names_the_loader(tuned: tuple[Row, Trials, list[Trial]]) -> None:
    first = tuned[0]
    assert first.findings[0]["id"] == "data-loading" and first.job.loaders[0].num_workers == 0
    assert first.job.optimizer == "SGD" and first.job.device == "cpu"


@pytest.mark.job
@pytest.mark.slow
def test_workers_help_with_equal_losses(tuned: tuple[Row, Trials, list[Trial]]) -> None:
    unchanged, helped = tuned[2]
    assert unchanged.failed is None and helped.failed is None
    assert helped.took == ("loader.num_workers",)
    assert unchanged.losses == helped.losses and len(unchanged.losses) == WARMUP + STEPS
    assert unchanged.parameters == helped.parameters is not None
    assert helped.step_ms is not None and unchanged.step_ms is not None
    assert unchanged.step_ms >= 8 * 20  # what it sleeps, which no load makes shorter


@pytest.mark.job
@pytest.mark.slow
def test_every_timed_step_is_in_the_log_and_nothing_else_runs(tuned: tuple[Row, Trials, list[Trial]]) -> None:
    _, trials, found = tuned
    assert [trial.steps.shape[1] for trial in found] == [STEPS, STEPS]
    assert [one["step_ms"] for one in trials.records] == [
        pytest.approx(trial.steps[0].tolist(), abs=1e-6) for trial in found
    ]


@pytest.mark.job
@pytest.mark.slow
def test_a_job_that_hangs_is_ended_with_all_its_children(tmp_path):
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    runner = BoundedRun(tmp_path / "log", limit_s=1.0, run_id="trial-that-hangs")
    code = runner([sys.executable, "-S", "-c", script], {"STEPSCOPE_RECORD": '{"run_id": "trial-that-hangs"}'})
    assert runner.timed_out and code != 0
    assert processes_of("trial-that-hangs") == []


SCRIPT = str(Path(__file__).parent / "ddp_job.py")


@pytest.mark.job
@pytest.mark.slow
def test_two_ranks_end_together_with_all_steps_written(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    trials = Trials([*torchrun, SCRIPT], tmp_path, steps=60, warmup=2, limit_s=600)
    bucket = Candidate("bucket", ROUNDING, "", {"ddp.bucket_cap_mb": 5})
    found = trials("once", bucket)
    assert found.failed is None and found.steps.shape[1] == 60 and found.took == ("ddp.bucket_cap_mb",)
    run = json.loads((tmp_path / "trials" / "000" / "run.json").read_text())
    assert run["finished"] and run["missing_ranks"] == [] and run["ddp"]["bucket_cap_bytes"] == 5 << 20
    assert [r["steps"]["count"] for r in run["ranks"].values()] == [62, 62]
