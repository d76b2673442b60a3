"""The five steps on a run with a planted straggler, and a fix held against its prediction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.diagnose.late import late_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose
from stepscope.investigate.investigation import CAME_TRUE, LESS, NO_PREDICTION, Measurement, Step, investigate, validate

US = 1000


def measured(folder: Path, *, late_us: float, **given: Any) -> Measurement:
    account = account_of(late_run(folder, late_us=late_us, loading=True), **given)
    return Measurement(account, diagnose(account))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return measured(tmp_path_factory.mktemp("late"), late_us=2000)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return measured(tmp_path_factory.mktemp("healthy"), late_us=0)


def steps_of(run: Measurement, **given: object) -> list[Step]:
    return list(investigate(run, **given))  # type: ignore[arg-type]


def test_the_five_steps_lead_to_the_planted_fault(late: Measurement) -> None:
    steps = steps_of(late)
    assert [s.name for s in steps] == ["Baseline", "Category", "Detail", "Root cause", "Validation"]
    assert [s.number for s in steps] == [1, 2, 3, 4, 5]
    assert "3.45 ms while profiled" in steps[0].answer
    assert "straggler-bound" in steps[1].answer
    assert any("rank 1 late" in f.what for f in steps[2].facts)
    assert "Rank 1" in steps[3].answer and steps[3].facts[0].what == "straggler" and steps[3].todo
    assert "stepscope investigate RUN --fixed" in steps[4].answer


def test_a_fix_that_gives_what_was_predicted_came_true(late: Measurement, healthy: Measurement) -> None:
    found = validate(late, healthy)
    assert found is not None
    assert found.fixed[0] == "straggler" and found.outcome == CAME_TRUE
    assert found.measured_ns == pytest.approx(2000 * US) and found.basis == "profiled"
    assert found.low_ns is not None and found.high_ns is not None
    assert found.low_ns <= found.measured_ns <= found.high_ns
    assert "came true" in steps_of(late, fixed=healthy)[4].answer


def test_a_fix_that_gives_less_is_told(late: Measurement, tmp_path: Path) -> None:
    half = measured(tmp_path, late_us=1700)
    found = validate(late, half, finding="straggler")
    assert found is not None and found.outcome == LESS
    assert "less than predicted" in steps_of(late, fixed=half, finding="straggler")[4].answer


def test_two_runs_alike_fixed_nothing(late: Measurement, tmp_path: Path) -> None:
    again = measured(tmp_path, late_us=2000)
    found = validate(late, again)
    assert found is not None and found.outcome == NO_PREDICTION and not found.fixed
    assert "--finding" in steps_of(late, fixed=again)[4].answer


def test_a_healthy_run_has_nothing_to_fix(tmp_path: Path) -> None:
    r = RankTrace()
    for n in range(6):
        at = n * 1000
        r.step(n, at, at + 1000)
        with r.op("aten::mm", at + 2, at + 12):
            r.kernel("gemm", at=at + 4, start=at + 10, end=at + 1010)
    account = account_of(built_run(tmp_path, [r]))
    steps = steps_of(Measurement(account, diagnose(account)))
    assert "compute-bound" in steps[1].answer
    assert "No fault" in steps[3].answer and "nothing to fix" in steps[4].answer


def test_a_run_without_steps_is_told_at_every_step(tmp_path: Path) -> None:
    rank = RankTrace()
    rank.ran("aten::mm", 0, 10)
    account = account_of(built_run(tmp_path, [rank]))
    steps = steps_of(Measurement(account, diagnose(account)))
    assert len(steps) == 5 and all(s.answer for s in steps)


def test_a_fault_of_which_most_is_gone_is_fixed_and_one_that_moved_is_new(tmp_path: Path, late: Measurement) -> None:
    found = validate(late, measured(tmp_path, late_us=300))
    assert found is not None and "straggler" in found.fixed and "straggler" not in found.remaining
    moved = replace(late.diagnosis.findings[0], ranks=(0,))
    other = replace(late, diagnosis=replace(late.diagnosis, findings=(moved, *late.diagnosis.findings[1:])))
    found = validate(late, other)
    assert found is not None and found.fixed == ("straggler",) and found.fresh == ("straggler",)
