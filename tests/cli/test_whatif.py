"""`stepscope whatif`: predictions, JSON, and one line with exit code 2 for anything that cannot be set."""

import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.owners.simulated import owned_run
from tests.analyze.simulate import kernel
from tests.diagnose.late import OWN_US, late_run

from stepscope.cli.main import main
from stepscope.whatif.keys import SETTINGS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("late")
    late_run(path, loading=True)
    return path


def test_the_prediction_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(folder), "--set", "straggler=off", "--set", "network=2x"]) == 0
    out = capsys.readouterr().out
    assert "with straggler=off network=2x" in out and "predicted" in out and "rank 3" in out
    assert "saves" in out


def test_json_holds_step_interval_and_ranks(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "whatif.json"
    assert main(["whatif", str(folder), "--set", "straggler=off", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["schema"] == 1 and found["set"] == ["straggler=off"]
    assert found["predicted_ms"] == pytest.approx(OWN_US / 1000, abs=0.2)
    assert found["predicted_low_ms"] <= found["predicted_ms"] <= found["predicted_high_ms"]
    assert found["measured_ms"] == pytest.approx(3.45) and len(found["ranks"]) == 4
    assert main(["whatif", str(folder), "--set", "straggler=off", "--json", str(target)]) == 2  # exists


def test_json_alone_goes_to_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(folder), "--set", "data=instant", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["saving_pct"] > 40


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "nothing=1"], "overlap=perfect"),
        (["--set", "network=fast"], "2x or 0.5x"),
        ([], "give at least one --set KEY=VALUE"),
    ],
)
def test_what_cannot_be_set_is_one_line_and_exit_2(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["whatif", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["whatif", "--help"])
    out = capsys.readouterr().out
    assert all(f"{s.key}={s.values}" in out for s in SETTINGS)


def test_missing_ranks_are_said_though_the_answer_does_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    alone = RankTrace(0, world_size=4)
    for n in range(3):
        alone.step(n, n * 100, n * 100 + 100)
        alone.kernel("gemm", at=n * 100 + 1, start=n * 100 + 10, end=n * 100 + 60)
    built_run(tmp_path, [alone])
    assert main(["whatif", str(tmp_path), "--set", "network=2x", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["schema"] == 1
    assert said.err.startswith("warning: ranks missing: 1-3 of 4")


def test_a_line_is_taken_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    owned_run(tmp_path, [kernel(150, host_us=20) for _ in range(12)])
    asked = ["whatif", str(tmp_path), "--without", "train.py:12", "train.py:13", "--scale", "train.py:14=0.5"]
    assert main([*asked, "--ranks", "0"]) == 0
    out = capsys.readouterr().out
    assert "with train.py:12 deleted train.py:13 deleted train.py:14 x0.5" in out
    assert "deleted, not replaced" in out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--without", "train.py:999"], "lines of that file near it"),
        (["--without", "train.py:12", "--ranks", "7"], "not all of them were recorded"),
        (["--scale", "train.py:12"], "OWNER=FACTOR"),
        (["--scale", "train.py:12=1e9"], "OWNER=FACTOR"),
        (["--set", "data=instant", "--ranks", "0"], "--ranks says where"),
    ],
)
def test_an_owner_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    owned_run(tmp_path, [kernel(150, host_us=20) for _ in range(12)])
    assert main(["whatif", str(tmp_path), *given]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
