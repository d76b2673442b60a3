"""Deep recursion: the tree of stacks gives what tuples of frames gave, work grows with events, depth has a bound."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main


def nested(path: Path, depth: int, *, distinct: int, module: bool = False) -> Path:
    """Write a trace of five steps, in the first of which as many Python frames lie in each other."""
    at = {"ph": "X", "pid": 1, "tid": 1}
    long = 20 * depth
    steps = [
        {**at, "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": long * i, "dur": long} for i in range(5)
    ]
    names = [f"nn.Module: M_{i}" if module and i % 2 else f"a.py({i + 1}): f" for i in range(distinct)]
    frames = [
        {**at, "cat": "python_function", "name": names[i % distinct], "ts": 4 * i, "dur": long - 8 * i}
        for i in range(depth)
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*steps, *frames]}))
    return path


def calls_in(command: list[str]) -> int:
    """Return how many Python functions and loops of ours a command runs: it does not depend on the machine."""
    count = 0

    def count_line(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if "stepscope/analyze/" not in frame.f_code.co_filename:
            return None
        count += 1
        return count_line

    before = sys.gettrace()
    sys.settrace(count_line)
    try:
        assert main(command) == 0
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
def test_work_grows_with_events_and_not_with_their_depth(tmp_path: Path) -> None:
    each = []
    for depth in (100, 200, 400):
        trace = nested(tmp_path / f"{depth}.json", depth, distinct=depth)
        each.append(calls_in(["report", str(trace), "--no-cache", "--json", str(tmp_path / f"{depth}.out")]))
    assert each[2] - each[1] < 2.5 * (each[1] - each[0])


def test_a_thousand_frames_are_analysed_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = nested(tmp_path / "rank0.json", 1000, distinct=1000)
    assert main(["code", str(trace), "--no-cache", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    lines = {row["line"]: row for row in json.loads(out)["code"]}
    assert set(lines) == set(range(1, 1001)) and not err
    # Each frame is 4 us longer at its beginning and at its end than the one inside it, in one of five steps.
    for line in (1, 500, 999):
        assert lines[line]["own_host_ms"] == pytest.approx(0.008 / 5)
        assert lines[line]["host_ms"] == pytest.approx((20 * 1000 - 8 * (line - 1)) / 5000)


@pytest.mark.slow
def test_frames_beyond_the_bound_are_counted_for_the_one_around_them(tmp_path, capsys):
    trace = nested(tmp_path / "rank0.json", 5000, distinct=5000)
    assert main(["code", str(trace), "--no-cache", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert "rank 0: 904 Python events below 4,096 others" in err
    lines = {row["line"]: row for row in json.loads(out)["code"]}
    assert max(lines) == 4096
    assert lines[4096]["own_host_ms"] == pytest.approx((20 * 5000 - 8 * 4095) / 5000)


@pytest.mark.slow
def test_modules_nested_without_end_have_paths_of_bounded_length(tmp_path, capsys):
    trace = nested(tmp_path / "rank0.json", 2000, distinct=2000, module=True)
    assert main(["report", str(trace), "--no-cache", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [line for line in found["warnings"] if "modules nested more than 512 deep" in line]
