"""The job writes the step lines and the run.json that the contract describes, and the desk reads them."""

import json
from typing import Any

from stepscope.contract.step_line import BEFORE, FORWARD, WARMUP, StepLine
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


def test_desk_reads_them() -> None:
    log = step_log_of(written(), rank=0)
    assert log.dur_ns.tolist() == [100, 200]
    assert log.column(f"regions.{FORWARD}.ns").tolist() == [40, 40]
    assert log.unprofiled.tolist() == [False, False]  # the profiler's warm-up, and the step right after it
