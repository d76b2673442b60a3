"""`stepscope history`, `compare --against`, and a finished run sent to a tracking server."""

import json
import shutil
from pathlib import Path

import pytest
from tests.compare.history.folders import eight_runs

from stepscope.cli.main import main

TRACES = Path(__file__).parents[1] / "data" / "gloo-linear"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eight_runs(tmp_path_factory.mktemp("runs"), "bad")


def test_slow_host_and_regression_are_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(runs), "--no-cache", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    (slow,) = [host for host in said["hosts"] if host["is_slow"]]
    assert (slow["host"], slow["slowest"], slow["runs"]) == ("bad", 8, 8)
    (newest,) = said["newest"]
    assert (newest["run"], newest["commit"], newest["verdict"]) == ("run-8", "b" * 40, "slower")
    assert all(run["peak_memory_bytes"] >= 3 * 10**9 for run in said["runs"])


def test_run_with_traces_has_findings_and_an_unreadable_one_code_3(tmp_path, capsys):
    shutil.copytree(TRACES, tmp_path / "one")
    assert main(["history", str(tmp_path), "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["findings"] and row["verdict"] and row["step_ms"] > 0 and row["hosts"] == ["vm"]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rank00000.pt.trace.json").write_text("\x1b[31mno trace")
    assert main(["history", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert "bad:" in said and "\x1b" not in said


@pytest.mark.slow
def test_run_against_its_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(3):
        shutil.copytree(TRACES, tmp_path / f"run{n}")
        described = json.loads((TRACES / "run.json").read_text())
        described["created"] = f"2026-11-0{n + 1}T00:00:00+00:00"
        (tmp_path / f"run{n}" / "run.json").write_text(json.dumps(described))
    words = ["compare", str(tmp_path / "run2"), "--against", str(tmp_path), "--no-cache", "--json", "-"]
    assert main([*words, "--fail-on", "step_ms>5%"]) == 0
    said = capsys.readouterr()
    assert "A: 2 runs" in said.err and "run0 to run1" in said.err
    assert len(json.loads(said.out)["a"]["runs"]) == 2
    assert main([*words, "--fail-on", "step.unprofiled_ms>1"]) == 1
