"""Memory of weights, gradients and optimizer state by formulas, next to what was measured."""

import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.jobs import STEP, collective, training_step
from tests.analyze.memory.test_usage import MB, Allocator, training

from stepscope.cli.main import main
from stepscope.contract.run_folder import RUN_JSON


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that average gradients; what is kept is weights and optimizer state by the job's count."""
    path = tmp_path_factory.mktemp("run")
    traces = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2)
        gradients: list[int] = []
        allocator = Allocator(r)
        for n in range(3):
            training_step(r, n)
            collective(r, "allreduce", n * STEP + 2000, took=100)
            gradients = training(allocator, n, gradients)
        traces.append(r)
    built_run(path, traces)
    described = json.loads((path / RUN_JSON).read_text()) if (path / RUN_JSON).exists() else {}
    model = {"bytes": 90 * MB, "parameters": 10, "local_parameters": 10, "trainable_parameters": 10}
    described |= {"schema": 1, "world_size": 2, "model": model, "optimizer": "AdamW", "samples_per_step": 16}
    (path / RUN_JSON).write_text(json.dumps(described))
    for rank in range(2):
        counted = {"parameters_bytes": 90 * MB, "optimizer_bytes": 180 * MB}
        edge = {"kind": "snapshot", "label": "end optimizer_step", "step": 2, **counted}
        (path / f"rank{rank:05d}.memory.jsonl").write_text(json.dumps(edge) + "\n")
    return path


def test_prediction_is_next_to_the_measurement(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", str(folder), "--no-cache", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {p["category"]: p["predicted_bytes"] for p in said["predicted"]}["optimizer_state"] == 180 * MB
    assert {p["category"]: p["measured_bytes"] for p in said["predicted"]}["weights"] == 90 * MB
