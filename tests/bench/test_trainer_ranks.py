"""The trainer on two gloo ranks: strategies agree, every rank is recorded, a checkpoint fits any strategy."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.two_ranks import two_ranks

from stepscope.cli.main import main

pytestmark = pytest.mark.job
JOB = Path(__file__).parent / "trainer_job.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trainer")
    two_ranks([str(JOB), str(out)])
    return out


def losses(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"losses{rank}.json").read_text())
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_all_strategies_and_a_resumed_training_have_the_same_losses(folder: Path, rank: int) -> None:
    found = losses(folder, rank)
    assert len(found) == 6
    for name, values in found.items():
        assert values == pytest.approx(found["ddp"], rel=1e-5), name


def test_report_reads_the_run_of_both_ranks(folder: Path) -> None:
    assert main(["report", str(folder / "ddp_bucketed" / "run"), "--json", str(folder / "report.json")]) == 0
    report = json.loads((folder / "report.json").read_text())
    assert (report["run"]["num_ranks"], report["run"]["num_steps"]) == (2, 2)
    assert report["run"]["strategy"] == "ddp"
    assert report["step"]["unprofiled_ms"] > 0


def test_summary_is_of_the_whole_job(folder: Path) -> None:
    found = json.loads((folder / "ddp" / "summary.json").read_text())
    assert found["world_size"] == 2
    rate = found["summary"]["tokens_per_sec"] * found["summary"]["avg_step_time"] / 1000
    assert rate == pytest.approx(2 * 2 * 2 * 8)  # ranks, micro-batches, samples, tokens
