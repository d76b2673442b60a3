"""Every command that writes results refuses an output that exists before it does any work."""

from pathlib import Path

import pytest

from stepscope.cli.main import main

COMMANDS = {
    "report": ["no-such-run"],
    "whatif": ["no-such-run", "--set", "straggler=off"],
    "code": ["no-such-run"],
    "compare": ["no-such-run", "no-other-run"],
    "health": ["no-such-run"],
    "history": ["no-such-folder"],
    "investigate": ["no-such-run"],
    "calibrate": ["--from-csv", "no-such-file.csv"],
    "sql": ["no-such-run", "select 1"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_existing_output_is_refused_before_the_input_is_looked_at(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "result.json"
    there.write_text("mine")
    assert main([command, *COMMANDS[command], "--json", str(there)]) == 2
    said = capsys.readouterr().err
    assert "exists" in said and "--force" in said
    assert there.read_text() == "mine"
