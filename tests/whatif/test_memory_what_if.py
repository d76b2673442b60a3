"""Changes of memory: the peak by formulas on measured curves, moved where another moment is higher; or unknown."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.jobs import STEP, collective, training_step
from tests.analyze.memory.test_usage import KEPT, MB, Allocator, training

import stepscope
from stepscope.analyze.memory import Moments
from stepscope.analyze.phases import Phase
from stepscope.cli.main import main
from stepscope.contract.run_folder import RUN_JSON
from stepscope.lab.predict.model_memory import Batch, layer_bytes
from stepscope.lab.predict.model_shape import Precision, Transformer
from stepscope.records import Row
from stepscope.whatif.memory import LAYER_INPUT_SHARES, MemoryJob, memory_what_if

JOB = MemoryJob(
    replicas=4, layers=10, samples=8.0, forward_ns=10e6, backward_ns=20e6, gradient_comm_ns=4e6,
    host_link_bytes_per_s=1e9,
)  # fmt: skip


def moments(**changed: list[int] | None) -> Moments:
    """Memory at the end of forward, in backward and in the optimizer's step, in MB."""
    curves: dict[str, list[int] | None] = {
        "weights": [100, 100, 100], "gradients": [0, 50, 100], "optimizer_state": [200, 200, 200],
        "activations": [400, 200, 0], "temporary": [10, 20, 100], "kept": [5, 5, 5],
    }  # fmt: skip
    by_category = {
        name: None if curve is None else np.array(curve, np.int64) * MB for name, curve in (curves | changed).items()
    }
    phase = np.array([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER], np.uint8)
    return Moments(phase, by_category, on_device=True)


def peak(one: Row) -> tuple[float, float]:
    assert one.peak_low_bytes is not None and one.peak_high_bytes is not None
    return one.peak_low_bytes / MB, one.peak_high_bytes / MB


def test_checkpointing_moves_the_peak_to_the_optimizer() -> None:
    found = memory_what_if("checkpointing", moments(), JOB)
    assert peak(found) == (505, 505) and found.phase == "optimizer"
    assert (found.extra_low_ns, found.extra_high_ns) == (10e6, 10e6)
    # of 10 layers: a tenth, and a sixteenth to a ninth of inputs
    low, high = peak(memory_what_if("checkpointing", moments(temporary=[300, 20, 0]), JOB))
    assert (low, high) == pytest.approx((605 + 400 * (0.1 + 1 / 16), 605 + 400 * (0.1 + 1 / 9)))


def test_layers_can_be_given_and_unknown_ones_are_asked_for() -> None:
    unknown = replace(JOB, layers=None)
    found = memory_what_if("checkpointing", moments(), unknown)
    assert found.peak_high_bytes is None and "checkpointing=24" in found.reasons["peak"]
    assert memory_what_if("checkpointing=10", moments(), unknown) == Row(
        memory_what_if("checkpointing", moments(), JOB), change="checkpointing=10"
    )
    again = memory_what_if("checkpointing", moments(), replace(JOB, recomputes=True))
    assert again.peak_high_bytes is None and "already" in again.reasons["peak"]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("1", 715 - 150),
        ("2", 715 - 150),
        # a quarter of the weights, and two of ten layers whole
        ("3", 715 - 150 - 75 + 20),
    ],
)
def test_zero_divides_states_by_the_replicas(stage: str, expected: int) -> None:
    found = memory_what_if(f"zero={stage}", moments(), JOB)
    assert peak(found) == (expected, expected)
    assert (found.extra_low_ns, found.extra_high_ns) == (0.0, 2e6)


def test_zero_needs_replicas_and_what_it_divides() -> None:
    already = memory_what_if("zero=2", moments(), MemoryJob(sharded_as="fsdp-zero3"))
    assert already.peak_high_bytes is None and "fsdp-zero3" in already.reasons["peak"]
    alone = memory_what_if("zero=1", moments(), MemoryJob())
    assert alone.peak_high_bytes is None and "no data parallelism" in alone.reasons["peak"]
    lumped = memory_what_if("zero=1", moments(optimizer_state=None), JOB)
    assert lumped.peak_high_bytes is None and lumped.measured_bytes == 515 * MB
    assert "optimizer_state" in lumped.reasons["peak"]


def test_offload_takes_the_state_away_and_the_link_at_least() -> None:
    found = memory_what_if("offload=optimizer", moments(), JOB)
    assert peak(found) == (515, 515)
    assert found.extra_low_ns == pytest.approx(200e6) and found.extra_high_ns is None  # 200 MB at 1 GB/s
    assert "upper bound" in found.reasons["time"]
    assert memory_what_if("offload=optimizer", moments(), replace(JOB, host_link_bytes_per_s=None)).extra_low_ns is None
    on_host = replace(moments(), on_device=False)
    assert memory_what_if("offload=optimizer", on_host, JOB).peak_high_bytes is None


def test_batch_scales_activations_and_temporaries_outside_the_optimizer() -> None:
    found = memory_what_if("batch=16", moments(), JOB)
    assert peak(found) == (715 + 410, 715 + 410)
    assert (found.extra_low_ns, found.extra_high_ns) == (0.0, 30e6)
    half = memory_what_if("batch=0.5x", moments(), JOB)
    assert peak(half) == (715 - 205, 715 - 205) and half.phase == "forward"
    assert (half.extra_low_ns, half.extra_high_ns) == (-15e6, 0.0)
    unknown = memory_what_if("batch=16", moments(), replace(JOB, samples=None))
    assert unknown.peak_high_bytes is None and "batch=2x" in unknown.reasons["peak"]


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


def test_run_folder_in_python_text_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (zero, batch) = stepscope.load(folder, cache=False).memory_what_if("zero=1", "batch=16")
    assert zero.measured_bytes == KEPT + 60 * MB
    assert zero.peak_high_bytes == KEPT + 60 * MB - 90 * MB
    assert zero.extra_high_ns == pytest.approx(50_000)
    assert batch.peak_high_bytes == KEPT + 60 * MB + 45 * MB
    assert batch.extra_high_ns == pytest.approx(4 * (200_000 + 400_000))
    changes = ["--what-if", "zero=1", "--what-if", "checkpointing"]
    assert main(["memory", str(folder), "--no-cache", "--json", "-", *changes]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["change"] for one in said["what_ifs"]] == ["zero=1", "checkpointing"]
    assert said["what_ifs"][0]["extra_high_ms"] == pytest.approx(0.05)
    assert said["what_ifs"][1]["peak_high_bytes"] is None
    assert {p["category"]: p["predicted_bytes"] for p in said["predicted"]}["optimizer_state"] == 180 * MB
    assert {p["category"]: p["measured_bytes"] for p in said["predicted"]}["weights"] == 90 * MB
    assert main(["memory", str(folder), "--no-cache", "--what-if", "magic"]) == 2


def test_shares_of_layers_inputs_are_those_of_the_predicted_memory() -> None:
    model = Transformer(layers=1, d_model=1024, heads=16, vocab=1, mlp_width=4096, fused_qkv=True)
    shares = [kind.residual_bytes * model.d_model / layer_bytes(model, Batch(1, 1, kind)) for kind in Precision]
    assert (min(shares), max(shares)) == pytest.approx(LAYER_INPUT_SHARES)
