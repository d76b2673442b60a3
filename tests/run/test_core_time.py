"""A run on cores that other programs use is reported with the times of free cores."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, true_ns

import stepscope
from stepscope.document.statements import contradictions
from stepscope.report.summary import summary_text

MS = 1_000_000
# of a step on free cores, in ms
FORWARD, OPTIMIZER, PYTHON = 12.0, 5.0, 3.0
STEP = FORWARD + OPTIMIZER + PYTHON


def record(folder: Path, slower: list[float], window: range, *, in_optimizer: bool = False) -> None:
    """Write steps that each take so many times as long because the thread has no core, some of them profiled.

    All parts are slower; or the optimizer's operator alone, and the waits in it are listed.
    """
    r, at, waits = RankTrace(), 0.0, list[tuple[int, int, int]]()
    lines: list[dict[str, Any]] = [{"schema": 1, "rank": 0, "world_size": 1}]
    for n, times in enumerate(slower):
        began, ms, lost = at, 1000.0 if in_optimizer else 1000 * times, 1000 * STEP * (times - 1) * in_optimizer
        if n in window:
            steps = (at + FORWARD * ms, at + (FORWARD + OPTIMIZER) * ms + lost)
            r.step(n, at, at + STEP * ms + lost)
            r.ran("aten::mm", at, steps[0])
            r.annotation("Optimizer.step#SGD.step", *steps)
            r.ran("aten::_foreach_add_", *steps)
            # both end before the operator does, and are seen up to a millisecond later
            for end, waited in ((steps[0] + 1000 + lost / 4, lost / 4), (steps[1] - 200, 3 * lost / 4)):
                waits += [(int(1000 * (end - 300)), int(1000 * (end + 700)), int(1000 * waited))] if lost else []
        at += STEP * ms + lost
        regions = {"forward_pass": FORWARD * (1 if in_optimizer else times), "optimizer_step": OPTIMIZER * times}
        lines.append({
            "step": n, "start_ns": int(1000 * began), "end_ns": int(1000 * at), "dur_ns": int(STEP * times * MS),
            "device_ns": None, "profiled": n in window, "phase": "window" if n in window else "after",
            "regions": {name: {"ns": int(own * MS), "n": 1} for name, own in regions.items()},
            "cpu": {"run_ns": int(STEP * MS), "delay_ns": int(STEP * (times - 1) * MS)},
        })  # fmt: skip
    document = r.document() | {"deviceProperties": []}
    (folder / "rank00000.pt.trace.json").write_text(json.dumps(document))
    (folder / "rank00000.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if in_optimizer:
        base_ns = true_ns(0)
        moved = [(base_ns + after, base_ns + seen, waited) for after, seen, waited in waits]
        found = {"schema": 1, "since_ns": base_ns - 10 * MS, "until_ns": base_ns + int(at * 1000) + MS, "waits": moved}
        (folder / "rank00000.core_waits.jsonl").write_text(json.dumps(found) + "\n")


# as a job that was killed leaves it: no samples, no description, and fewer steps than a mean needs
@pytest.mark.parametrize("killed", [False, True])
def test_times_are_those_of_free_cores(tmp_path: Path, killed: bool) -> None:
    slower = [3.0, 9.0, 4.0, 5.0, 2.0, 7.0, 3.0, 8.0, 6.0, 3.0, 4.0, 5.0, 9.0, 2.0, 3.0, 4.0, 6.0, 5.0, 3.0, 4.0]
    record(tmp_path, slower[:11] if killed else slower, range(4, 8))
    found = stepscope.load(tmp_path).document
    step = found["step"]
    parts = {p["part"]: p["ms_per_step"] for p in step["budget"]}
    assert step["starved"] is True
    assert step["unprofiled_ms"] == pytest.approx(STEP, rel=0.01)
    assert step["profiled_ms"] == pytest.approx(STEP, rel=0.01)
    assert parts["optimizer"] == pytest.approx(OPTIMIZER, rel=0.02)
    assert step["core_wait_ms"] > 2 * STEP
    assert not [f for f in found["findings"] if "CPU core" in f["title"]]
    assert not list(contradictions(found))
    assert "Overloaded machine" in summary_text(found)


@pytest.mark.parametrize("listed", [True, False])
def test_listed_waits_are_taken_out_where_they_were(tmp_path: Path, listed: bool) -> None:
    record(tmp_path, [3.0, 9.0, 4.0, 5.0, 2.0, 7.0, 3.0, 8.0, 6.0, 3.0, 4.0], range(4, 8), in_optimizer=True)
    if not listed:
        (tmp_path / "rank00000.core_waits.jsonl").write_text('{"schema": 1, "waits": [[1, 0, -1]]}\n')
    found = stepscope.load(tmp_path).document
    profiled = {p["part"]: p["ms_per_step"] for p in found["step"]["budget"]}
    assert found["step"]["profiled_ms"] == pytest.approx(STEP, rel=0.01)
    assert (profiled["forward"] == pytest.approx(FORWARD, rel=0.02)) is listed
    assert (profiled["optimizer"] == pytest.approx(OPTIMIZER, rel=0.02)) is listed


def test_a_window_without_waits_keeps_its_times(tmp_path: Path) -> None:
    record(tmp_path, [5.0] * 4 + [1.0] * 4 + [5.0] * 12, range(4, 8), in_optimizer=True)
    found = stepscope.load(tmp_path).document
    assert json.loads((tmp_path / "rank00000.core_waits.jsonl").read_text())["waits"] == []
    assert found["step"]["starved"] and found["step"]["profiled_ms"] == pytest.approx(STEP, rel=0.01)


def test_steps_that_were_timed_together_have_their_mean(tmp_path: Path) -> None:
    record(tmp_path, [3.0, 9.0, 4.0, 5.0, 2.0, 7.0, 3.0, 8.0] + [2.0, 10.0] * 10, range(4, 8))
    path = tmp_path / "rank00000.steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[9:]:
        line["cpu"] = {"run_ns": int(STEP * MS), "delay_ns": int(5 * STEP * MS)}  # of any two
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = tmp_path / "rank00000.pt.trace.json"
    whole = json.loads(trace.read_text())
    whole["traceEvents"].append({"ph": "i", "name": "a mark", "pid": 1, "tid": 1, "ts": whole["traceEvents"][-1]["ts"]})
    trace.write_text(json.dumps(whole))
    run = stepscope.load(tmp_path)
    events = run.table("events")
    assert events.cells["dur_ns"].missing is not None and events.cells["dur_ns"].missing.sum() == 1  # of the mark
    found = run.document
    assert found["step"]["unprofiled_ms"] == pytest.approx(STEP, rel=0.01)
    assert not [f for f in found["findings"] if "in some steps" in f["title"]]


def test_short_waits_leave_the_times_as_they_are(tmp_path: Path) -> None:
    record(tmp_path, [1.05] * 20, range(4, 8))
    found = stepscope.load(tmp_path).document
    assert found["step"]["starved"] is False
    assert found["step"]["unprofiled_ms"] == pytest.approx(1.05 * STEP, rel=0.01)
    assert "Overloaded" not in summary_text(found)


def test_a_wait_that_contradicts_the_overload_is_found(tmp_path: Path) -> None:
    record(tmp_path, [4.0] * 20, range(4, 8))
    found = dict(stepscope.load(tmp_path).document)
    found["step"] = {**found["step"], "core_wait_ms": 0.1}
    assert [one.check for one in contradictions(found)] == ["starved"]
