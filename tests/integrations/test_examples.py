"""Every example runs on two gloo ranks and leaves a run folder with all its steps and regions, fit for a report."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.record.script_runs import step_lines
from tests.two_ranks import two_ranks, two_tasks

from stepscope.cli.main import main

pytestmark = pytest.mark.job
STEPS = 10
# How often each region occurs in a step (two micro-batches with gradient accumulation), and what the ranks import.
EXAMPLES = {
    "torchrun": (1, ""),
    "accelerate": (2, "accelerate torch.distributed.tensor"),
    "transformers": (2, "transformers.trainer"),
    "lightning": (1, "lightning"),
    "deepspeed": (2, "deepspeed"),
}
REGIONS = ("data_loading", "forward_pass", "backward_pass")


def assert_complete(folder: Path, *, micro_batches: int, steps: int = STEPS) -> None:
    for rank in range(2):
        found = step_lines(folder, rank)
        assert len(found) == steps
        assert [step["step"] for step in found if step["phase"] == "window"] == [5, 6, 7]
        counts = {name: region["n"] for name, region in found[4]["regions"].items()}
        assert {name: counts.get(name) for name in REGIONS} == dict.fromkeys(REGIONS, micro_batches)
        assert counts["optimizer_step"] == 1
    assert main(["report", str(folder), "--json", str(folder.parent / "report.json")]) == 0
    report = json.loads((folder.parent / "report.json").read_text())
    assert (report["run"]["num_ranks"], report["run"]["num_steps"], report["run"]["backend"]) == (2, 3, "gloo")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_recorded_on_two_ranks(name: str, tmp_path: Path) -> None:
    if name != "torchrun" and find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    out = tmp_path / "run"
    said = two_ranks(f"examples/train_{name}.py", "--steps", STEPS, "--out", out, modules=EXAMPLES[name][1])
    assert f"run folder {out}" in said[0]
    assert_complete(out, micro_batches=EXAMPLES[name][0])


def test_stepscope_record_around_an_integration_is_the_only_recorder(tmp_path: Path) -> None:
    """As `srun stepscope record -- python train.py`, whose tasks find each other by Slurm's variables."""
    job = ["-m", "stepscope.cli.main", "record", "--out", str(tmp_path / "outside"), "--steps", "5:8", "--"]
    script = [sys.executable, "examples/train_slurm.py", "--steps", str(STEPS), "--out", str(tmp_path / "inside")]
    said = two_tasks([*job, *script])
    assert all("already recorded by `stepscope record`" in text for text in said)
    assert not (tmp_path / "inside").exists()
    assert_complete(tmp_path / "outside", micro_batches=1)
