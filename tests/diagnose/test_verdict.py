"""What the largest part of a step is called."""

import re
from importlib.resources import files
from pathlib import Path

from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.verdict import COMPUTE, HOST, verdict

STEP = 2000


def test_communication_that_no_recorded_rank_matches_is_not_the_hosts(tmp_path: Path) -> None:
    rank = RankTrace(0, world_size=8)
    for number in range(4):
        t = number * STEP
        rank.step(number, t, t + STEP)
        with rank.op("aten::mm", t + 1, t + 20):
            rank.kernel("gemm", at=t + 10, start=t + 30, end=t + 330)
        rank.collective("allreduce", at=t + 25, start=t + 330, end=t + 1990)
    account = account_of(built_run(tmp_path, [rank]))
    assert account.step is not None and account.step.ns("unknown") > account.step.step_ns / 2
    assert verdict(account) == "communication-bound"


def test_the_reports_card_adds_up_the_same_parts() -> None:
    """The page has no python: it names the parts behind each verdict again."""
    script = files("stepscope.report.html").joinpath("js", "summary.js").read_text()
    for name, parts in (("compute", COMPUTE), ("the host", HOST)):
        listed = re.search(rf'\["{name}", \[([^\]]*)\]\]', script)
        assert listed and re.findall(r'"(\w+)"', listed[1]) == list(parts)
