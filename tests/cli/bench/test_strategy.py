"""`bench strategy` on two ranks: every strategy measured with time and memory, and one recommendation."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from stepscope.bench.launch import LauncherPlace
from stepscope.cli import bench
from stepscope.cli.main import main
from stepscope.errors import UsageError

pytest.importorskip("torch")

SMALL = ["--d-model", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "8", "--vocab-size", "32",
         "--batch-size", "2", "--steps", "3", "--warmup-steps", "1", "--runs", "1"]  # fmt: skip


@pytest.mark.job
@pytest.mark.slow
def test_strategies_on_two_ranks_end_in_one_recommendation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    text = capsys.readouterr().out
    assert f"-> use {found['series']}: {found['reason']}" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["strategy", "--world-size", "1"], "--world-size 2"),
        (["strategy", "--precision", "fp16"], "bf16"),
        (["strategy", "--only", "zero4"], "zero4"),
        (["allocator", "--setting", "max_split_size_mb"], "--setting"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


@pytest.mark.parametrize(("what", "unless_told"), [("strategy", 2), ("accumulation", 1), ("batch-size", 1)])
def test_sweeps_on_ranks_take_those_of_a_launcher(what: str, unless_told: int) -> None:
    launched = LauncherPlace("torchrun", 1, 4, {})
    args = Namespace(what=what, world_size=unless_told)
    bench._take_ranks(args, launched)
    assert args.world_size == 4
    with pytest.raises(UsageError, match="--world-size 3"):
        bench._take_ranks(Namespace(what=what, world_size=3), launched)
