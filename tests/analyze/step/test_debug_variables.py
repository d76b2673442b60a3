"""Variables for debugging that were set while a job ran are said, and nothing else of its environment is."""

from dataclasses import replace
from pathlib import Path

from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of


def test_it_is_a_warning_of_the_report(tmp_path: Path) -> None:
    r = RankTrace(0)
    for n in range(3):
        r.step(n, 1000.0 * n, 1000.0 * (n + 1))
        r.ran("aten::mm", 1000.0 * n + 10, 1000.0 * n + 900)
    run = replace(built_run(tmp_path, [r]), description={"environment": {"CUDA_LAUNCH_BLOCKING": "1"}})
    assert any(line.startswith("CUDA_LAUNCH_BLOCKING=1") for line in account_of(run).warnings)
