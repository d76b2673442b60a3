"""A part of the step that grows is found whatever the machine's speed does, and a slower machine is no growth."""

import random
from pathlib import Path

import pytest
from tests.analyze.step_logs import log_lines, write_log

from stepscope.analyze.thread_time import growth
from stepscope.records import Row
from stepscope.run.side_files import readable_step_logs

MS = 1_000_000
STEPS = 240
SPEEDS = {
    "steady": lambda n: 1.0,
    "slower at the end": lambda n: 1.0 if n < STEPS / 2 else 1.7,
    "faster at the end": lambda n: 1.0 if n < STEPS / 2 else 0.85,
    "slow in the middle": lambda n: 1.8 if STEPS / 3 < n < 2 * STEPS / 3 else 1.0,
    "now and then": lambda n: 1.6 if n // 10 % 2 else 1.0,
    "ever slower": lambda n: 1.0 + n / STEPS,
}


def found(folder: Path, speed: str, *, grows_to_ms: float = 0.0, moves_ms: float = 0.0) -> Row | None:
    """Write steps of 10 ms of work and 2 ms outside of it; that grows, or gets some of the work's time."""
    noise = random.Random(0)
    steps = []
    for n in range(STEPS):
        moved = moves_ms * n / STEPS
        slow = SPEEDS[speed](n)
        work = (10 - moved) * noise.uniform(0.95, 1.1) * slow
        outside = (2 + moved + grows_to_ms * n / STEPS) * noise.uniform(0.95, 1.1) * slow
        steps.append({"forward_pass": work, "outside": outside})
    write_log(folder, 0, log_lines(steps, window=range(STEPS, STEPS)), ranks=1)
    (log,), _ = readable_step_logs(folder)
    return growth(log, None)


@pytest.mark.parametrize("speed", SPEEDS)
def test_growth_is_found_at_any_speed(tmp_path: Path, speed: str) -> None:
    one = found(tmp_path, speed, grows_to_ms=12)
    assert one is not None and one.region == "outside every region"
    speeds = [SPEEDS[speed](n) for n in range(STEPS // 3)]
    planted_ms = 12 * 2 / 3  # from the middle of the first third to that of the last
    assert 0.85 * min(speeds) < (one.late_ns - one.early_ns) / MS / planted_ms < 1.15 * max(speeds)
    assert 0.75 * min(speeds) < one.mean_ns / MS / (planted_ms / 2) < 1.25 * max(speeds)


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_machine_that_changes_its_speed_is_no_growth(tmp_path: Path, speed: str) -> None:
    assert found(tmp_path, speed) is None


def test_time_that_moves_from_one_part_to_another_is_no_growth(tmp_path: Path) -> None:
    assert found(tmp_path, "steady", moves_ms=5) is None
