"""What two reports say of each other: numbers with and without intervals, findings that come and go, gates."""

from typing import Any

import pytest

from stepscope.compare.conditions import GateResult, parse_gate
from stepscope.compare.document import (
    ONE_VALUE,
    Metric,
    finding_changes,
    metrics_of,
    waterfall_changes,
)
from stepscope.compare.runs import Comparison
from stepscope.compare.sides import judge_changes
from stepscope.stats.bootstrap import Difference


def report(*, step_ms: float = 10.0, findings: tuple[tuple[str, int], ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "run": {"name": "r", "world_size": 4, "device": "chip", "strategy": "ddp", "torch": None},
        "step": {"profiled_ms": step_ms, "unprofiled_ms": None, "tokens_per_s": 1e6 / step_ms, "budget": []},
        "efficiency": {"mfu": 4.0 / step_ms},
        "waterfall": [
            {"loss": "exposed_transfer", "pct_of_peak": 30.0, "ms_per_step": 3.0},
            {"loss": "achieved", "pct_of_peak": 70.0, "ms_per_step": 7.0},
        ],
        "collectives": [
            {"op": "all_reduce", "group": "dp", "wait_ms": 1.0},
            {"op": "all_reduce", "group": "tp", "wait_ms": 2.0},
        ],
        "stragglers": [],
        "findings": [
            {"id": id_, "title": id_, "ranks": [rank], "saving_alone_ms": 2.0, "saving_pct": 20.0}
            for id_, rank in findings
        ],
        **more,
    }


def step(a: float, b: float, half: float) -> Comparison:
    found = Difference(a, b, b - a - half, b - a + half, 0.001 if abs(b - a) > half else 0.4, half)
    return Comparison(found, "profiled", False, {"step.profiled_ms": found}, (), (), (), ())


def judged(text: str, *, a: float = 10.0, b: float = 11.0, half: float = 0.5, **more: Any) -> GateResult:
    sides = [report(step_ms=a)], [report(step_ms=b, **more)]
    return judge_changes([parse_gate(text)], metrics_of(*sides, step(a, b, half)), *sides)[0]


def named(metrics: tuple[Metric, ...], name: str) -> Metric:
    return next(m for m in metrics if m.name == name)


def test_numbers_with_samples_have_intervals_and_single_ones_say_why_not() -> None:
    metrics = metrics_of([report()], [report(step_ms=11.0)], step(10, 11, 0.5))
    profiled = named(metrics, "step.profiled_ms").difference
    assert profiled is not None and (profiled.low, profiled.high) == (0.5, 1.5)
    single = named(metrics, "collectives.all_reduce.wait_ms")
    assert single.difference is None and single.reason == ONE_VALUE
    assert named(metrics, "collectives.all_reduce:tp.wait_ms").a == 2.0


def test_throughput_and_mfu_are_as_sure_as_the_step() -> None:
    metrics = metrics_of([report()], [report(step_ms=11.0)], step(10, 11, 0.5))
    mfu = named(metrics, "efficiency.mfu").difference
    assert mfu is not None
    assert mfu.low == pytest.approx(4 / 11.5 - 0.4) and mfu.high == pytest.approx(4 / 10.5 - 0.4)
    assert mfu.significant


def test_several_runs_on_both_sides_give_every_number_an_interval() -> None:
    a, b = ([report(step_ms=ms) for ms in times] for times in ((10.0, 10.1, 9.9), (12.0, 12.1, 11.9)))
    found = named(metrics_of(a, b, step(10, 12, 0.5)), "collectives.all_reduce.wait_ms").difference
    assert found is not None and found.change == 0 and not found.significant


def test_findings_come_go_and_stay() -> None:
    before = [report(findings=(("straggler", 2), ("no-overlap", 0)))]
    after = [report(findings=(("straggler", 3), ("no-overlap", 0)))]
    said = {(f.id, f.ranks): f.what for f in finding_changes(before, after)}
    assert said == {("straggler", (3,)): "came", ("straggler", (2,)): "went", ("no-overlap", (0,)): "stayed"}


def test_waterfall_rows_of_both_sides() -> None:
    rows = waterfall_changes([report()], [report()])
    assert [r.loss for r in rows] == ["exposed_transfer", "achieved"]
    assert waterfall_changes([report()], [report(waterfall=[])]) == ()


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("step_ms>5%", False),
        ("step_ms>15%", True),
        ("step_ms<-5%", True),
        ("mfu<-5%", False),
        ("step.profiled_ms>5%", False),
        ("step.tokens_per_s<-5%", False),
        ("step_ms>12", True),
        ("step_ms>10.5", False),
        ("collectives.*.wait_ms>5%", True),
        ("findings.straggler.saving_pct>5", True),
        ("stragglers.count>0", True),
    ],
)
def test_gates_judge_the_change_or_the_second_side(text: str, holds: bool) -> None:
    assert judged(text).holds is holds


def test_a_single_number_is_judged_as_it_is_and_said_to_be_one() -> None:
    worse = [{"op": "all_reduce", "group": "dp", "wait_ms": 1.5}, {"op": "all_reduce", "group": "tp", "wait_ms": 2.0}]
    result = judged("collectives.all_reduce.wait_ms>5%", collectives=worse)
    assert not result.holds and ONE_VALUE in result.said
