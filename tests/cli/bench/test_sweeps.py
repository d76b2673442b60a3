"""Sweeps on the command line: a small real one, and what is refused."""

import json
from pathlib import Path

import pytest

from stepscope.cli.main import main

pytest.importorskip("torch")

SMALL = ["--d-model", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "8", "--vocab-size", "32",
         "--steps", "4", "--warmup-steps", "1", "--runs", "2"]  # fmt: skip


@pytest.mark.job
def test_sweep_ends_with_advice_and_a_results_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    assert main(["bench", "precision", *SMALL, "--out", str(out), "--json", str(tmp_path / "p.json")]) == 0
    text = capsys.readouterr().out
    assert "tf32: not measured: tf32 is a mode" in text and "-> " in text
    document = json.loads((out / "results.json").read_text())
    assert document == json.loads((tmp_path / "p.json").read_text())
    assert [row["name"] for row in document["series"]] == ["fp32", "fp16", "bf16"]
    assert all(len(row["samples_ms"]) == 2 and len(row["samples_ms"][0]) == 4 for row in document["series"])
    verdicts = document["sweep"]["verdict"]["variants"]
    assert [v["status"] for v in verdicts] == ["measured", "not measured", "measured", "measured"]
    assert all(v["agreement"]["agrees"] for v in verdicts if v["status"] == "measured")
    assert (out / "results.svg").read_text().startswith("<svg")
    assert main(["bench", "precision", *SMALL, "--out", str(out)]) == 2  # not overwritten


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["accumulation", "--batch-size", "3"], "--batch-size"),
        (["precision", "--only", "fp12"], "fp12"),
        (["attention", "--option", "kv_heads"], "--option"),
        (["batch-size", "--backend", "nccl", "--memory-limit", "1GB"], "--memory-limit"),
        (["dataloader", "--workers", "two"], "two"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["bench", *arguments, "--out", str(tmp_path / "out")])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    error = capsys.readouterr().err
    assert code == 2 and named in error and error.count("\n") == 1
