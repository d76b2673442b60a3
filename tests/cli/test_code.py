"""`stepscope code` and `stepscope whatif`: what lines cost and what changes would save, as text and JSON."""

import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.owners.simulated import owned_run
from tests.analyze.simulate import kernel
from tests.diagnose.late import OWN_US, late_run

from stepscope.cli.main import main


def test_without_owners_it_says_how_to_get_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    r = RankTrace(0)
    r.step(0, 0, 100)
    r.kernel("k", at=10, start=20, end=40)
    built_run(tmp_path, [r])
    assert main(["code", str(tmp_path), "--no-cache"]) == 2
    error = capsys.readouterr().err
    assert "was not recorded; record again with stepscope record" in error and error.count("\n") == 1


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("late")
    late_run(path, loading=True)
    return path


def test_json_holds_step_interval_and_ranks(simulated: Path, tmp_path: Path) -> None:
    target = tmp_path / "whatif.json"
    assert main(["whatif", str(simulated), "--set", "straggler=off", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["schema"] == 1 and found["set"] == ["straggler=off"]
    assert found["predicted_ms"] == pytest.approx(OWN_US / 1000, abs=0.2)
    assert found["predicted_low_ms"] <= found["predicted_ms"] <= found["predicted_high_ms"]
    assert found["measured_ms"] == pytest.approx(3.45) and len(found["ranks"]) == 4
    assert main(["whatif", str(simulated), "--set", "straggler=off", "--json", str(target)]) == 2  # exists


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "nothing=1"], "overlap=perfect"),
        (["--set", "network=fast"], "2x or 0.5x"),
        ([], "give at least one --set KEY=VALUE"),
    ],
)
def test_what_cannot_be_set_is_one_line_and_exit_2(simulated, capsys, words, said):
    assert main(["whatif", str(simulated), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_line_is_taken_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    owned_run(tmp_path, [kernel(150, host_us=20) for _ in range(12)])
    asked = ["whatif", str(tmp_path), "--without", "train.py:12", "train.py:13", "--scale", "train.py:14=0.5"]
    assert main([*asked, "--ranks", "0", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["set"] == ["train.py:12 deleted", "train.py:13 deleted", "train.py:14 x0.5"]
    assert any("deleted, not replaced" in note for note in found["notes"])
