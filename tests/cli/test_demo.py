"""`stepscope demo` finds the fault that it planted."""

import re
from pathlib import Path

import pytest

from stepscope.cli import demo
from stepscope.cli.main import main


@pytest.mark.job
@pytest.mark.slow
def test_the_planted_straggler_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Longer than the sleep of the demo, which a machine with much else to do hides in its noise.
    monkeypatch.setattr(demo, "SLOW_MS", 500.0)
    monkeypatch.setattr(demo, "STEPS", 45)
    code = main(["demo", "--out", "demo"])
    out, err = capfd.readouterr()
    assert code == 0, out + err
    assert re.search(r"Found       rank 1 is late and costs \d+ ms per step \(\d+ to \d+\), because of its host", out)
    own_ms = [int(n) for n in re.findall(r"rank \d (\d+) ms", out.split("Step log")[1])]
    assert len(own_ms) == 2
    assert own_ms[1] - own_ms[0] > demo.SLOW_MS / 2
    assert "stepscope report demo" in out


def test_without_torch_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.cli.demo.find_spec", lambda name: None)
    assert main(["demo"]) == 2
    assert "torch is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "expected"), [(["--ranks", "1"], "--world-size: the demo needs at least 2")])
def test_wrong_usage_is_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *words]) == 2
    assert expected in capsys.readouterr().err
