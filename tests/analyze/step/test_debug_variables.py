"""Variables for debugging that were set while a job ran are said, and nothing else of its environment is."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of, debug_warnings


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "CUDA_LAUNCH_BLOCKING=1 was set: the host waits for every kernel"),
        ("TORCH_DISTRIBUTED_DEBUG", "Detail", "TORCH_DISTRIBUTED_DEBUG=DETAIL was set"),
        ("TORCH_NCCL_BLOCKING_WAIT", "true", "TORCH_NCCL_BLOCKING_WAIT=true was set"),
    ],
)
def test_what_slows_every_step_is_said(name: str, value: str, words: str) -> None:
    (line,) = debug_warnings({"environment": {name: value, "NCCL_IB_DISABLE": "1"}})
    assert line.startswith(words) and "unset it" in line


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "INFO", "NCCL_DEBUG": "WARN"},
        {"CUDA_LAUNCH_BLOCKING": 1, "NCCL_DEBUG": ["TRACE"]},
        {"CUDA_LAUNCH_BLOCKING": "\x1b[31m1"},
        ["CUDA_LAUNCH_BLOCKING"],
        None,
    ],
)
def test_other_values_and_what_is_no_environment_are_passed_over(environment: object) -> None:
    assert debug_warnings({"environment": environment}) == debug_warnings({}) == []


def test_it_is_a_warning_of_the_report(tmp_path: Path) -> None:
    r = RankTrace(0)
    for n in range(3):
        r.step(n, 1000.0 * n, 1000.0 * (n + 1))
        r.ran("aten::mm", 1000.0 * n + 10, 1000.0 * n + 900)
    run = replace(built_run(tmp_path, [r]), description={"environment": {"CUDA_LAUNCH_BLOCKING": "1"}})
    assert any(line.startswith("CUDA_LAUNCH_BLOCKING=1") for line in account_of(run).warnings)
