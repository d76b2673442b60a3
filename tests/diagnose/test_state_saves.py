"""Many tensors copied to the host in a row are a checkpoint where the job trains, and its results where it does not."""

from dataclasses import replace

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import Run
from stepscope.run.side_files import step_log_of

NODE = "autograd::engine::evaluate_function: MmBackward0"


@pytest.mark.parametrize("trains", [True, False])
def test_only_a_job_that_trains_saves_its_state(tmp_path, trains):
    found = titles(built_run(tmp_path, [saving_rank(trains=trains)]))
    assert ("A checkpoint is saved inside the step" in found) is trains


def test_where_regions_show_no_checkpoint_the_copies_are_none(tmp_path):
    run = built_run(tmp_path, [saving_rank(trains=True)])
    ms, regions = 1_000_000, {"forward_pass": {"ns": 1_000_000, "n": 1}}
    steps = [
        {"step": n, "start_ns": n * 15 * ms, "end_ns": (n + 1) * 15 * ms, "dur_ns": 15 * ms, "regions": regions}
        for n in range(6)
    ]
    logs = (step_log_of([{**step, "profiled": False, "phase": "after"} for step in steps], rank=0),)
    assert "Many tensors are copied to the host" in titles(replace(run, logs=logs))


def titles(run: Run) -> list[str]:
    return [finding.title for finding in diagnose(account_of(run)).findings]


def saving_rank(*, trains: bool) -> RankTrace:
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
    return rank
