"""Lines of the step log leave in order, whatever the wall clock does meanwhile. T21 numbers the fault."""

import json
import time

import pytest

from stepscope.record.steps import StepLog

HOUR_NS = 3_600_000_000_000
SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("jump_ns", [-HOUR_NS, -SECOND_NS, SECOND_NS, HOUR_NS, 50 * 365 * 24 * HOUR_NS])
def test_T21_lines_leave_in_order_whatever_the_wall_clock_does(jump_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1_700_000_000 * SECOND_NS
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    sent: list[dict] = []
    log = StepLog(lambda *lines: sent.extend(map(json.loads, lines)), None)
    for step in range(60):
        now_ns += 20_000_000
        if step == 30:
            now_ns += jump_ns
        log.add({"step": step, "dur_ns": 20_000_000, "profiled": False})
        # At most the lines of a tenth of a second wait, also where the clock was set far back.
        assert step - len(sent) < 8
    log.flush()
    assert [line["step"] for line in sent] == list(range(60))
    assert {line["end_ns"] - line["start_ns"] for line in sent} == {20_000_000}
