"""The job writes the step lines and the run.json that the contract describes, and the desk reads them."""

import json
from typing import Any

from stepscope.contract.run_folder import RunJson
from stepscope.contract.step_line import BEFORE, FORWARD, WARMUP, StepLine
from stepscope.record.helper.writer import run_description
from stepscope.record.steps import StepLog
from stepscope.run.step_log import step_log_of

REGIONS = {FORWARD: {"ns": 40, "n": 1}}


def written() -> list[dict[str, Any]]:
    """Return the lines of a step that was followed and of one that was only timed."""
    lines: list[str] = []
    log = StepLog(lambda *texts: lines.extend(texts), None)
    log.add({"step": 0, "dur_ns": 100, "profiled": False, "phase": WARMUP, "regions": REGIONS, "late_ns": 0})
    log.add_past([(5_200, REGIONS, log.mark_end())], first=1, start_ns=5_000, phase=BEFORE)
    log.flush()
    return [json.loads(line) for line in lines]


def test_every_line_has_what_the_contract_says() -> None:
    assert [set(line) for line in written()] == [set(StepLine.__required_keys__)] * 2


def test_a_line_written_by_hand_is_the_json_of_what_it_says() -> None:
    assert written()[1] | {"start_ns": 0, "end_ns": 200} == {
        "step": 1, "start_ns": 0, "end_ns": 200, "dur_ns": 200, "profiled": False, "phase": BEFORE, "regions": REGIONS,
        "device_ns": None,
    }  # fmt: skip


def test_desk_reads_them() -> None:
    log = step_log_of(written(), rank=0)
    assert log.dur_ns.tolist() == [100, 200]
    assert log.column(f"regions.{FORWARD}.ns").tolist() == [40, 40]
    assert log.unprofiled.tolist() == [False, False]  # the profiler's warm-up, and the step right after it


def test_run_json_has_what_the_contract_says() -> None:
    steps = dict.fromkeys(("before", "window", "after", "unprofiled"))
    described = run_description([{"rank": 0, "files": [], "steps": steps}], world_size=1, finished=True)
    assert set(described) == set(RunJson.__annotations__)
