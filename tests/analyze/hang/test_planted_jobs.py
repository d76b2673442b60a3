"""Real two-rank gloo jobs that hang: the dumps of their flight recorders name what was planted."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.analyze.hang import Hang, hang_of
from stepscope.document.hang import conclusions
from stepscope.run.dumps import read_dumps

JOB = Path(__file__).with_name("planted_job.py")
LINES = JOB.read_text().splitlines()


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(LINES) if text in line)


def dumped(folder: Path, fault: str) -> Hang:
    started = [
        subprocess.Popen(
            [sys.executable, JOB, str(rank), "2", folder / "store", folder / f"fr_trace_rank_{rank}", fault],
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            process.wait(timeout=HANG_S)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return hang_of(read_dumps([str(folder)]).by_rank)


@pytest.mark.job
def test_planted_missing_rank(tmp_path: Path) -> None:
    found = dumped(tmp_path, "missing")
    assert found.suspects == (1,) and found.groups[0].missing == (1,)
    assert f"planted_job.py:{line_of('# REDUCE')} (main)" in conclusions(found)[0]
    assert {g.desc: g.verdict for g in found.groups} == {"default_pg": "missing-rank", "tp": "finished"}


@pytest.mark.job
def test_planted_wrong_shape(tmp_path: Path) -> None:
    found = dumped(tmp_path, "shape")
    mismatch = found.groups[0].mismatch
    assert mismatch is not None and mismatch.kind == "wrong-shape"
    assert {rank: call.input_sizes for rank, call in mismatch.calls.items()} == {0: ((64,),), 1: ((96,),)}
    assert f"planted_job.py:{line_of('# SHAPE')} (main)" in conclusions(found)[0]


@pytest.mark.job
def test_planted_wrong_order(tmp_path: Path) -> None:
    found = dumped(tmp_path, "order")
    mismatch = found.groups[0].mismatch
    assert mismatch is not None and mismatch.kind == "wrong-order"
    said = conclusions(found)[0]
    assert f"rank 0 gloo:all_reduce at {JOB}:{line_of('# REDUCE')} (main)" in said
    assert f"rank 1 gloo:broadcast at {JOB}:{line_of('# ORDER')} (main)" in said
