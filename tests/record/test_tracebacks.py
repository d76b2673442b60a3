"""An error in the script's own code is printed as it would be without the recorder: no frame of ours in it."""

import re
from pathlib import Path

import pytest
from tests.record.script_runs import script, started

from stepscope.record.config import RecordConfig

_FRAME = re.compile(r'^(?:\[rank0\]: )?  File "(.*)", line \d+, in (.*)$', re.MULTILINE)


SEARCHED, ONLY_TIMED, IN_WINDOW = 1, 8, 11
"""steps in which calls are searched, are only timed, and are profiled"""
FAILURES = [
    ("forward", SEARCHED),
    ("forward", IN_WINDOW),
    ("loop", ONLY_TIMED),
    ("save", ONLY_TIMED),
    ("collective", IN_WINDOW),
]


@pytest.mark.job
@pytest.mark.parametrize("where", dict.fromkeys(where for where, _ in FAILURES))
def test_errors_of_the_script_have_its_frames_alone(where: str, tmp_path: Path) -> None:
    plain = started(script("raises.py", where, "8"), tmp_path)
    assert (plain.returncode, len(_FRAME.findall(plain.stderr)) > 0) == (1, True)
    for at in (at for name, at in FAILURES if name == where):
        config = RecordConfig(out=str(tmp_path / f"run{at}"), telemetry=False)
        done = started(script("raises.py", where, str(at)), tmp_path, config)
        assert done.returncode == 1
        assert _FRAME.findall(done.stderr) == _FRAME.findall(plain.stderr), done.stderr
        assert (tmp_path / f"run{at}" / "run.json").exists()
