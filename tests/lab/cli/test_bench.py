"""`stepscope bench`: what is wrong is said in one line before anything runs; partial results are kept."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.lab.bench import sessions
from stepscope.lab.bench.launch import LaunchResult


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        code = main(["bench", *words])
    except SystemExit as stopped:  # an argument that the parser refuses
        code = int(stopped.code or 0)
    assert code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["scaling", "--world-sizes", "1,3", "--batch-size", "8"], ("--batch-size 8", "3", "--mode weak")),
        (["scaling", "--world-sizes", "0"], ("--world-sizes",)),
        (["ddp", "--implementations", "ddp,nonsense"], ("nonsense", "ddp_bucketed")),
        (["ddp", "--profile", "--profile-implementation", "magic"], ("magic",)),
        (["ddp", "--implementations", "fsdp2_zero3", "--precision", "fp16"], ("fp16", "fsdp2_zero3", "bf16")),
        (["straggler", "--slow-rank", "5"], ("--slow-rank", "5")),
        (["straggler", "--delays-ms", "-3"], ("--delays-ms",)),
        (["buckets", "--sizes-mb", "one"], ("--sizes-mb", "one")),
        (["strategy", "--world-size", "1"], ("--world-size 2",)),
        (["strategy", "--precision", "fp16"], ("bf16",)),
        (["strategy", "--only", "zero4"], ("zero4",)),
        (["allocator", "--setting", "max_split_size_mb"], ("--setting",)),
        (["accumulation", "--batch-size", "3"], ("--batch-size",)),
        (["precision", "--only", "fp12"], ("fp12",)),
        (["attention", "--option", "kv_heads"], ("--option",)),
        (["batch-size", "--backend", "nccl", "--memory-limit", "1GB"], ("--memory-limit",)),
        (["dataloader", "--workers", "two"], ("two",)),
    ],
)
def test_wrong_arguments_are_named_before_anything_runs(words, names, capsys, tmp_path):
    line = said(capsys, *words, "--out", str(tmp_path / "out"))
    assert all(name in line for name in names)
    assert not (tmp_path / "out" / "results.json").exists()


def test_existing_results_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text("{}")
    assert "--force" in said(capsys, "ddp", "--out", str(tmp_path))
    assert (tmp_path / "results.json").read_text() == "{}"


def record(variant: str, run: int, step_ms: float) -> dict[str, Any]:
    return {
        "what": "samples", "variant": variant, "run": run, "warmup_ms": [step_ms], "step_ms": [step_ms] * 30,
        "losses": [1.0] * 30, "memory_allocated_gb": None, "peak_memory_allocated_gb": None,
        "peak_memory_reserved_gb": None,
    }  # fmt: skip


TRACED: dict[str, Any] = {"what": "trace", "run": None, "paths": []}


def ended(monkeypatch: pytest.MonkeyPatch, message: str | None, *, interrupted: bool = False) -> None:
    """Let the ranks end with this message after the first run of `ddp`, while `pytorch_ddp` is measured."""
    records = ([record("ddp", 0, 21.0), {"what": "begin", "variant": "pytorch_ddp", "run": 0}],)

    def launch(*_: Any, **__: Any) -> LaunchResult:
        return LaunchResult((0, 0), records, message, interrupted)

    monkeypatch.setattr(sessions, "launch", launch)


@pytest.mark.parametrize(("interrupted", "code"), [(False, 3), (True, 130)])
def test_partial_results_are_written_with_the_reason(interrupted, code, tmp_path, monkeypatch, capsys):
    ended(monkeypatch, "rank 1 was killed by signal 9", interrupted=interrupted)
    words = ["bench", "ddp", "--implementations", "ddp,pytorch_ddp", "--out", str(tmp_path / "out")]
    assert main(words) == code
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert not found["complete"] and found["message"] == "rank 1 was killed by signal 9"
    assert [row["name"] for row in found["series"]] == ["ddp"]
    assert found["series"][0]["samples_ms"] == [[21.0] * 30]
    shown = capsys.readouterr()
    assert "partial result: rank 1 was killed" in shown.err and "21.0 ms" in shown.out


@pytest.mark.job
@pytest.mark.slow
def test_planted_straggler_costs_time_and_is_named(tmp_path: Path) -> None:
    tiny = "--d-model 32 --num-layers 1 --num-heads 2 --seq-len 16 --vocab-size 64 --batch-size 2"
    method = "--num-epochs 30 --warmup-epochs 3 --runs 1 --delays-ms 0,300"
    earlier = tmp_path / "logs" / "300ms-run0"
    earlier.mkdir(parents=True)
    (earlier / "run.json").write_text("{}")  # as a benchmark before this one left it
    words = ["bench", "straggler", *tiny.split(), *method.split(), "--out", str(tmp_path)]
    assert main(words) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["series"]
    planted = rows[1]["straggler"]
    assert planted["planted_ms"] == 300 and planted["lost_throughput_pct"] > 20
    assert [late["rank"] for late in planted["found"][0]] == [1]
    assert planted["found"][0][0]["late_ms"] == pytest.approx(300, rel=0.5)


@pytest.mark.job
@pytest.mark.slow
def test_weak_scaling_gives_efficiency_and_a_plot(tmp_path: Path) -> None:
    tiny = "--d-model 32 --num-layers 1 --num-heads 2 --seq-len 16 --vocab-size 64 --batch-size 4"
    method = "--num-epochs 6 --warmup-epochs 2 --runs 1 --world-sizes 1,2 --mode weak"
    assert main(["bench", "scaling", *tiny.split(), *method.split(), "--out", str(tmp_path)]) == 0
    one, two = json.loads((tmp_path / "results.json").read_text())["scaling"]
    assert one["efficiency"] == 1.0 and two["world_size"] == 2
    assert two["efficiency"] == pytest.approx(two["speedup"] / 2) and two["low"] <= two["efficiency"] <= two["high"]
    assert (tmp_path / "results.svg").read_text().startswith("<svg")


@pytest.mark.job
def test_collectives_give_time_and_bandwidth_of_what_was_asked_for(tmp_path: Path) -> None:
    words = ["--op", "all_gather", "--max-bytes", "4KiB", "--limit-s", "5", "--out", str(tmp_path / "out")]
    assert main(["bench", "collectives", *words]) == 0
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["series"]
    assert {row["config"]["op"] for row in rows} == {"all_gather"}
    for row in rows:
        gb_per_s = row["config"]["bytes"] / row["summary"]["median_us"] / 1000
        assert row["summary"]["algbw_gb_per_s"] == pytest.approx(gb_per_s)
        assert row["summary"]["busbw_gb_per_s"] == pytest.approx(gb_per_s / 2)


def test_collectives_take_the_one_world_size_of_a_configuration(tmp_path, capsys):
    (tmp_path / "job.toml").write_text("[ranks]\nworld_size = 1\n")
    out = str(tmp_path / "out")
    assert main(["bench", "collectives", "--config", str(tmp_path / "job.toml"), "--out", out]) == 2
    assert "world sizes have to be 2 or more, not 1" in capsys.readouterr().err


pytest.importorskip("torch")

SMALL = ["--d-model", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "8", "--vocab-size", "32",
         "--batch-size", "2", "--steps", "3", "--warmup-steps", "1", "--runs", "1"]  # fmt: skip


@pytest.mark.job
@pytest.mark.slow
def test_strategies_on_two_ranks_end_in_one_recommendation(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out, as_json = tmp_path / "out", tmp_path / "strategy.json"
    some = ["--only", "zero1,zero2-bf16,zero3"]
    assert main(["bench", "strategy", *SMALL, *some, "--out", str(out), "--json", str(as_json)]) == 0
    document = json.loads((out / "results.json").read_text())
    assert document == json.loads(as_json.read_text()) and document["environment"]["world_size"] == 2
    names = ["ddp", "zero1", "zero2-bf16", "zero3"]
    assert [row["name"] for row in document["series"]] == names
    assert all(v["agreement"]["agrees"] for v in document["sweep"]["verdict"]["variants"] if v["status"] == "measured")
    assert all(row["summary"]["samples_per_step"] == 4 for row in document["series"])
    found = document["recommendation"]
    assert found["series"] in names and found["excluded"] == {}
    assert found["time_over_low"] <= found["time_over"] <= found["time_over_high"]
    assert f"use {found['series']}: {found['reason']}" in " ".join(capsys.readouterr().out.split())


SMALL_MODEL = ["--d-model", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "8", "--vocab-size", "32",
         "--steps", "4", "--warmup-steps", "1", "--runs", "2"]  # fmt: skip


@pytest.mark.job
def test_sweep_ends_with_advice_and_a_results_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    assert main(["bench", "precision", *SMALL_MODEL, "--out", str(out), "--json", str(tmp_path / "p.json")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "tf32: not measured: tf32 is a mode" in text and "Recommendation" in text
    document = json.loads((out / "results.json").read_text())
    assert document == json.loads((tmp_path / "p.json").read_text())
    assert [row["name"] for row in document["series"]] == ["fp32", "fp16", "bf16"]
    assert all(len(row["samples_ms"]) == 2 and len(row["samples_ms"][0]) == 4 for row in document["series"])
    verdicts = document["sweep"]["verdict"]["variants"]
    assert [v["status"] for v in verdicts] == ["measured", "not measured", "measured", "measured"]
    assert all(v["agreement"]["agrees"] for v in verdicts if v["status"] == "measured")
    assert (out / "results.svg").read_text().startswith("<svg")
    assert main(["bench", "precision", *SMALL_MODEL, "--out", str(out)]) == 2  # not overwritten


OWN = """
import torch
from torch import nn

def seven(spec, device):
    return nn.Linear(8, 8), [torch.randn(7, 8), torch.randn(7, 8)], lambda model, batch: model(batch).square().mean()

def sized(spec, device):
    made = [torch.randn(spec.batch_size, 8)]
    return nn.Linear(8, 8), made, lambda model, batch: model(batch).square().mean()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_batches.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.job
def test_batches_that_ignore_the_batch_size_are_refused(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = ["--steps", "2", "--warmup-steps", "1", "--runs", "1"]
    assert main(["bench", "accumulation", "--workload", "own_batches:seven", *method, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert "7 samples" in error and "return a Dataset or a function of the batch size" in error
    assert not (own / "out" / "results.json").exists()


@pytest.mark.job
def test_batches_made_for_the_batch_size_are_measured(own: Path) -> None:
    method = ["--steps", "2", "--warmup-steps", "1", "--runs", "1", "--out", "out", "--only", "1 x 8,2 x 4"]
    assert main(["bench", "accumulation", "--workload", "own_batches:sized", *method]) == 0
    rows = json.loads((own / "out" / "results.json").read_text())["series"]
    assert {row["name"]: row["summary"]["samples_per_step"] for row in rows} == {"1 x 8": 8, "2 x 4": 8}


@pytest.mark.job
def test_profile_prints_the_users_own_model_and_one_step_time(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = ["--num-epochs", "8", "--warmup-epochs", "1", "--profile", "--profile-output-dir", "profiled"]
    method += ["--profile-epochs", "3"]
    assert main(["bench", "ddp", "--workload", "own_batches:seven", *method]) == 0
    summary = (own / "profiled" / "ddp_summary.txt").read_text()
    shown = dict(line.split(None, 1) for line in summary.split("Step time")[0].splitlines() if line.count(" "))
    assert shown["model"].strip() == "Linear" and shown["parameters"].strip() == "72"
    assert shown["samples_per_step"].strip() == "14" and "d_model" not in shown and "batch_size" not in shown
    (step,) = re.findall(r"step +([\d.]+) ms \(without the profiler\)", summary)
    assert f"--unprofiled-step-ms {step}\n" in capsys.readouterr().out
