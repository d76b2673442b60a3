"""Step logs become columns, cut lines are forgiven, and the unprofiled step is found in them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.contract.run_folder import steps_file
from stepscope.run.step_log import MISSING, read_step_log, step_logs, unprofiled_step
from stepscope.units import ms

MS = 1_000_000


def line(step: int, dur_ms: float, *, profiled: bool = False, **more: Any) -> dict[str, Any]:
    start = step * 1000 * MS
    dur = round(dur_ms * MS)
    phase = "window" if profiled else "before"
    fixed = {"step": step, "start_ns": start, "end_ns": start + dur, "dur_ns": dur, "device_ns": None}
    return {
        **fixed,
        "profiled": profiled,
        "phase": phase,
        "regions": {"forward_pass": {"ns": dur // 3, "n": 1}},
        **more,
    }


def write(path: Path, lines: list[dict[str, Any]], *, tail: bytes = b"", rank: int = 0) -> Path:
    header = json.dumps({"schema": 1, "rank": rank}).encode()
    path.write_bytes(b"\n".join([header, *(json.dumps(x).encode() for x in lines)]) + b"\n" + tail)
    return path


def test_log_becomes_columns(tmp_path: Path) -> None:
    lines = [line(0, 10), line(1, 20, memory={"allocated_bytes": 5}), line(2, 30, profiled=True)]
    log = read_step_log(write(tmp_path / steps_file(3), lines, rank=3))
    assert log.rank == 3
    assert log.dur_ns.tolist() == [10 * MS, 20 * MS, 30 * MS]
    assert log.device_ns.tolist() == [MISSING] * 3
    assert log.profiled.tolist() == [False, False, True]
    assert np.isnan(log.column("memory.allocated_bytes")[[0, 2]]).all()
    assert log.column("memory.allocated_bytes")[1] == 5
    assert log.column("regions.forward_pass.n").tolist() == [1, 1, 1]
    assert np.isnan(log.column("regions.unheard_of.ns")).all()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_torn_last_line_is_left_out_and_not_counted_as_lost(tmp_path: Path, cut: int) -> None:
    last = json.dumps(line(2, 10)).encode()[:-cut]
    log = read_step_log(write(tmp_path / steps_file(0), [line(0, 10), line(1, 10)], tail=last))
    assert log.step.tolist() == [0, 1]
    assert log.lost_lines == 0


def test_bad_line_in_the_middle_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path / steps_file(0), [line(0, 10)], tail=b"{garbage\n[1]\n" + json.dumps(line(1, 10)).encode())
    log = read_step_log(path)
    assert log.step.tolist() == [0, 1]
    assert log.lost_lines == 2


def test_unprofiled_step_leaves_out_warm_up_window_and_the_step_after_it(tmp_path: Path) -> None:
    for rank, steady in ((0, 10.0), (1, 12.0)):
        slow = [line(0, 900), line(1, 60)]
        before = [line(n, steady + 0.01 * (n % 3)) for n in range(2, 12)]
        window = [line(n, steady * 2, profiled=True) for n in range(12, 17)]
        after = [line(17, 300), *(line(n, steady + 0.01 * (n % 3)) for n in range(18, 22))]
        write(tmp_path / steps_file(rank), [*slow, *before, *window, *after], rank=rank)
    found = unprofiled_step(step_logs(tmp_path))
    assert found is not None
    assert ms(found.median_ns) == pytest.approx(11.01, abs=0.02)
    assert found.num_steps == 14
    assert found.warm_up_steps == 2
    assert (ms(found.over_ranks_ns.min), ms(found.over_ranks_ns.max)) == pytest.approx((10.01, 12.01), abs=0.02)
