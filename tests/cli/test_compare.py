"""`stepscope compare`: one screen, JSON, a page, gates with exit codes, sets of runs, benchmarks."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import RankTrace
from tests.analyze.step_logs import log_lines, write_log
from tests.diagnose.late import late_run
from tests.lab.results.test_results import write as write_bench

from stepscope.cli.main import main

RANKS = 2


def run_folder(folder: Path, *, step_ms: float, seed: int, late_us: float = 0.0) -> str:
    late_run(folder, late_us=late_us, ranks=RANKS)
    rng = np.random.default_rng(seed)
    lines = log_lines(step_ms * (1 + 0.03 * rng.standard_normal(60)))
    for rank in range(RANKS):
        write_log(folder, rank, lines, ranks=RANKS)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("runs")
    return {
        "fast": run_folder(root / "fast", step_ms=10.0, seed=1),
        "again": run_folder(root / "again", step_ms=10.0, seed=2),
        "slow": run_folder(root / "slow", step_ms=11.0, seed=3, late_us=8000),
        "slower": run_folder(root / "slower", step_ms=11.2, seed=4, late_us=8000),
    }


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["compare", *words, "--json", "-"])
    return code, json.loads(capsys.readouterr().out)


def test_json_holds_the_step_with_its_interval(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = compared(capsys, folders["fast"], folders["slow"])
    step = found["step_ms"]
    assert code == 0 and found["schema"] == 1 and found["basis"] == "unprofiled" and found["verdict"] == "slower"
    assert isinstance(step, dict)
    assert step["low"] < 1.0 < step["high"] and step["significant"]
    assert step["smallest_detectable_pct"] < 5


@pytest.mark.slow
def test_sets_of_runs_by_name_or_by_folder(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--a", folders["fast"], folders["again"], "--b", folders["slow"], folders["slower"]]
    code, found = compared(capsys, *words)
    assert code == 0 and found["verdict"] == "slower"
    assert isinstance(found["a"], dict) and [r["name"] for r in found["a"]["runs"]] == ["fast", "again"]
    assert not [note for note in found["notes"] if "one run per side" in note]
    root = str(Path(folders["fast"]).parent)
    _, same = compared(capsys, root, root)
    assert same["verdict"] == "no difference found"


def test_benchmarks_are_compared_by_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write_bench(tmp_path / "a"), write_bench(tmp_path / "bb")
    html = str(tmp_path / "c.html")
    code, found = compared(capsys, str(a), str(b), "--fail-on", "step_ms>5%", "--html", html)
    assert code == 0 and found["basis"] == "bench"
    assert found["gates"][0]["said"].startswith("bucketed.step_ms changed by")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fast"], "two sides"),
        (["fast", "slow", "again"], "two sides"),
        (["fast", "nowhere"], "nowhere"),
        (["fast", "slow", "--fail-on", "stpe_ms>5%"], "step_ms"),
        (["fast", "slow", "--fail-on", "nonsense"], "NAME OP NUMBER"),
        (["fast", "slow", "--b", "again"], "two sides"),
    ],
)
def test_wrong_words_are_one_line_and_exit_2(folders, words, said, capsys):
    assert main(["compare", *(folders.get(word, word) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_traces_without_steps_are_compared_as_far_as_they_go(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        bare = RankTrace(0)
        with bare.op("aten::mm", 0, 30):
            bare.kernel("gemm", at=10, start=40, end=140)
        bare.write(tmp_path / name)
    sides = [str(tmp_path / "a"), str(tmp_path / "b")]
    html = str(tmp_path / "c.html")
    code, found = compared(capsys, *sides, "--html", html, "--fail-on", "step_ms>5%")
    assert code == 1 and found["verdict"] == "too few steps to compare"
    assert found["gates"][0]["said"] == "step_ms is unknown in A and B, so the gate fails"


def test_a_rank_that_cannot_be_read_is_told_by_the_exit_code(folders, tmp_path, capsys):
    shutil.copytree(folders["fast"], tmp_path / "broken")
    next((tmp_path / "broken").glob("rank00001*trace*")).write_bytes(b"no trace")
    assert main(["compare", folders["fast"], str(tmp_path / "broken")]) == 3
