"""On two gloo ranks: every implementation trains the same model, and overlap grows as it should."""

import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.made_once import made_once

pytest.importorskip("torch")

from stepscope.cli.main import main
from stepscope.lab.bench.strategies import SIZES_MB, available, search
from stepscope.run.load import load

pytestmark = [pytest.mark.job, pytest.mark.slow]
EXAMPLE = Path(__file__).parents[3] / "examples" / "benchmark_ddp.py"
SIZES = {"d-model": 64, "num-layers": 3, "num-heads": 2, "seq-len": 32, "vocab-size": 256, "batch-size": 4}
TINY = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = made_once(tmp_path_factory, "bench_ddp", measure)
    found: dict[str, Any] = json.loads((folder / "ddp" / "results.json").read_text())
    assert json.loads((folder / "ddp.json").read_text()) == found
    return found


def measure(folder: Path) -> None:
    out = folder / "ddp"
    method = ["--num-epochs", "7", "--warmup-epochs", "3", "--runs", "1", "--bucket-size-mb", "0.2"]
    assert main(["bench", "ddp", *TINY, *method, "--out", str(out), "--json", str(out) + ".json"]) == 0
    assert (out / "results.svg").read_text().startswith("<svg")


def series(results: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in results["series"] if row["name"] == name)


def test_all_implementations_have_the_same_weights_after_10_steps(results: dict[str, Any]) -> None:
    assert [row["name"] for row in results["series"]] == list(available())
    for row in results["series"]:
        found = row["agreement"]
        assert found["steps"] == 10 and found["agrees"], row["name"]
        if not row["name"].startswith("deepspeed"):  # two ranks: a + b = b + a, so not even rounding differs
            assert found["equal"] and found["gradient_error"] == 0.0 and found["loss_error"] == 0.0, row["name"]


def test_overlap_grows_from_ddp_to_ddp_bucketed(results: dict[str, Any]) -> None:
    plain, bucketed = (series(results, name)["summary"] for name in ("ddp", "ddp_bucketed"))
    assert plain["overlap_efficiency"] < 0.1
    assert bucketed["overlap_efficiency"] > plain["overlap_efficiency"] + 0.1
    assert bucketed["overlap_pct"] > plain["overlap_pct"]


def test_summary_has_every_field_and_raw_samples_are_kept(results: dict[str, Any]) -> None:
    row = series(results, "pytorch_ddp")
    summary = row["summary"]
    assert len(row["samples_ms"]) == 1 and len(row["samples_ms"][0]) == 7 == summary["num_steps"]
    assert summary["min_step_time"] <= summary["avg_step_time"] <= summary["max_step_time"]
    per_s = 1000 / summary["avg_step_time"]
    assert summary["throughput_samples_per_sec"] == pytest.approx(8 * per_s)
    assert summary["tokens_per_sec"] == pytest.approx(8 * 32 * per_s)
    assert summary["peak_memory_allocated_gb"] is None and summary["memory_reason"]
    assert 0 < summary["final_loss"] < 10 and results["environment"]["world_size"] == 2


def test_gradients_accumulated_over_micro_batches_agree_too(tmp_path: Path) -> None:
    out = tmp_path / "accumulated"
    names = "ddp,ddp_individual_v2,ddp_bucketed,pytorch_ddp,fsdp2_zero2"
    method = f"--implementations {names} --grad-accum 2 --num-epochs 4 --warmup-epochs 1 --runs 1 --no-trace".split()
    assert main(["bench", "ddp", *TINY, *method, "--out", str(out)]) == 0
    rows = json.loads((out / "results.json").read_text())["series"]
    assert [row["agreement"]["agrees"] for row in rows] == [True] * 5
    assert max(row["agreement"]["weight_error"] for row in rows) < 1e-5


def test_profile_mode_leaves_traces_that_the_report_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "traces"
    chosen = ["--profile", "--profile-implementation", "ddp_bucketed", "--profile-output-dir", str(folder)]
    method = ["--num-epochs", "4", "--warmup-epochs", "3", "--profile-epochs", "4"]
    as_json = tmp_path / "profile.json"
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), *TINY, *chosen, *method, "--json", str(as_json)])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = json.loads(as_json.read_text())
    assert said["complete"] and len(said["traces"]) == 2 and len(said["epochs"]) == 7
    assert said["tokens_per_sec"] == pytest.approx(32 * said["throughput_samples_per_sec"])
    assert said["throughput_samples_per_sec"] == pytest.approx(1000 * 8 / said["step_ms"])
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == [
        "ddp_bucketed_rank_0_trace.json",
        "ddp_bucketed_rank_1_trace.json",
        "ddp_bucketed_summary.txt",
    ]
    run = load([str(folder)], cache=False)
    assert [rank.rank for rank in run.ranks] == [0, 1] and all(len(rank.steps) == 4 for rank in run.ranks)
    trace = json.loads((folder / "ddp_bucketed_rank_0_trace.json").read_text())["traceEvents"]
    names = {event.get("name") for event in trace}
    assert {"data_loading", "forward_pass", "backward_pass", "gradient_sync", "optimizer_step"} <= names
    assert {"lr_scheduling", "gradient_clipping_warmup", "epoch_2_warmup_lr_0.000667"} <= names
    assert "epoch_3_training_lr_0.001000" in names and "[memory]" in names
    clipped = [event for event in trace if event.get("name") == "gradient_clipping_warmup"]
    assert len(clipped) == 2  # of the four recorded epochs, 1 and 2 are warm-up
    assert main(["report", str(folder), "--json", str(tmp_path / "report.json")]) == 0
    budget = json.loads((tmp_path / "report.json").read_text())["step"]["budget"]
    assert {part["part"] for part in budget if part["ms_per_step"] > 0} >= {"forward", "backward", "optimizer"}


def test_search_finds_a_size_near_the_best_though_the_machine_slows_down() -> None:
    for latency in (0.01, 0.1, 0.5, 2.0):
        for overlap in (0.0, 0.05, 0.3, 2.0):
            # More messages for small buckets, less overlap for large ones.
            truth = [100 + latency * 200 / size + overlap * size for size in SIZES_MB]
            rounds = [0]

            def times(places: Sequence[int], truth: Any = truth, rounds: Any = rounds) -> list[float]:
                rounds[0] += 1
                return [truth[p] * rounds[0] for p in places]

            found = search(len(truth), times)
            assert truth[found.best] <= 1.05 * min(truth), (latency, overlap)
            assert len(found.ratios) < len(truth)
            assert abs(found.ratios[0] - truth[0] / truth[found.best]) < 1e-9
    assert search(1, lambda places: [1.0]).best == 0
