"""What the recorder says on stderr: once per machine and job, and the launcher knows that something was said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.record.failsafe import SAID, SEEN_VARIABLE, say


def test_ranks_of_one_machine_say_a_thing_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SEEN_VARIABLE, str(tmp_path))
    program = "from stepscope.record.failsafe import say; say('the disk is slow')"
    others = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True)
    for text in ("the disk is slow", "something else", "something else"):
        say(text)
    assert others.stderr == "stepscope: the disk is slow\n"
    assert capsys.readouterr().err == "stepscope: something else\n"
    assert len(list(tmp_path.glob(f"{SAID}*"))) == 2
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    say("something else")
    assert capsys.readouterr().err == "stepscope: something else\n"
