"""A profiled step in which no hook is called ends all the same where a limit is met."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from tests.record.script_runs import run_json, script, started, steps

from stepscope.record.config import RecordConfig
from stepscope.record.window.window import Watchdog, may_interrupt


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("session.py", False),
        ("hooks/root_hooks.py", True),
        ("hooks/loop/loop.py", False),
        ("hooks/backward.py", False),
    ],
)
def test_it_interrupts_the_script_but_not_the_recorder(file: str, expected: bool) -> None:
    path = Path(sys.modules[Watchdog.__module__].__file__ or "").parents[1] / file
    found: list[bool] = []
    script_ = compile("found.append(may_interrupt(frame()))", "script.py", "exec")
    names = {"found": found, "may_interrupt": may_interrupt, "frame": sys._getframe, "script": script_}
    exec(compile("exec(script)", str(path), "exec"), names)
    assert found == [expected]


def recorded_operators(trace: Path) -> int:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sum(event.get("cat") == "cpu_op" for event in events)


@pytest.mark.job
@pytest.mark.parametrize("at", [11, 15])
def test_operators_that_no_hook_sees_are_bounded(at: int, tmp_path: Path) -> None:
    config = RecordConfig(out=str(tmp_path / "run"), max_events=10_000, telemetry=False)
    operators = 100_000
    done = started(script("unhooked.py", str(at), str(operators)), tmp_path, config)
    assert done.returncode == 0, done.stderr
    assert done.stdout == started(script("unhooked.py", str(at), str(operators)), tmp_path).stdout
    assert len(steps(tmp_path)) == 24
    if at == 11:  # inside the window
        window = run_json(tmp_path)["windows"][0]["ranks"]["0"]
        assert "event budget" in window["cut"] and window["last_step"] == 11
        assert recorded_operators(tmp_path / "run" / window["name"]) < operators  # it ended while the step went on
    assert run_json(tmp_path)["flops_per_step"] == 512  # of another step, where the one to be counted was too much
    assert [line["step"] for line in steps(tmp_path) if line["profiled"]][-1] in (16, 17, 18)
