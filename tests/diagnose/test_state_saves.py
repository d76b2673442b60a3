"""Many tensors copied to the host in a row are a checkpoint where the job trains, and its results where it does not."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose

NODE = "autograd::engine::evaluate_function: MmBackward0"


@pytest.mark.parametrize("trains", [True, False])
def test_only_a_job_that_trains_saves_its_state(tmp_path: Path, trains: bool) -> None:
    rank, at = RankTrace(), 0.0
    for n in range(6):
        begin = at
        with rank.op("aten::mm", at + 2, at + 12):
            rank.kernel("gemm", at=at + 5, start=at + 10, end=at + 510)
        with rank.op(NODE if trains else "aten::relu", at + 14, at + 24):
            rank.kernel("gemm", at=at + 16, start=at + 511, end=at + 1010)
        at += 1012
        for _ in range(20):
            rank.copy("DtoH (Device -> Pageable)", at=at + 100, start=at + 110, end=at + 160, call_us=62)
            at += 165
        rank.step(n, begin, at)
    found = diagnose(account_of(built_run(tmp_path, [rank]))).findings
    assert ("A checkpoint is saved inside the step" in [finding.title for finding in found]) is trains
