"""What two reports say of each other, and gates: any number by its dotted name, no code run."""

from typing import Any

import pytest

from stepscope.compare.conditions import GateResult, judge, numbers, parse_gate
from stepscope.compare.document import ONE_VALUE, Metric, metrics_of, waterfall_changes
from stepscope.compare.runs import Comparison, StepDifference
from stepscope.compare.sides import judge_changes
from stepscope.errors import UsageError
from stepscope.stats.robust import Difference


def report(*, step_ms: float = 10.0, findings: tuple[tuple[str, int], ...] = (), **more: Any) -> dict[str, Any]:
    lost = {"loss": "exposed_transfer", "pct_of_peak": 30.0, "ms_per_step": 3.0}
    reached = {"loss": "achieved", "pct_of_peak": 70.0, "ms_per_step": 7.0}
    found = {"saving_alone_ms": 2.0, "saving_pct": 20.0}
    return {
        "run": {"name": "r", "world_size": 4, "device": "chip", "strategy": "ddp", "torch": None},
        "step": {"profiled_ms": step_ms, "unprofiled_ms": None, "tokens_per_s": 1e6 / step_ms, "budget": []},
        "efficiency": {"mfu": 4.0 / step_ms},
        "waterfall": [lost, reached],
        "collectives": [{"op": "all_reduce", "group": g, "wait_ms": ms} for g, ms in (("dp", 1.0), ("tp", 2.0))],
        "stragglers": [],
        "findings": [{"id": id_, "title": id_, "ranks": [rank], **found} for id_, rank in findings],
        **more,
    }


def step(a: float, b: float, half: float) -> Comparison:
    found = Difference(a, b, b - a - half, b - a + half, 0.001 if abs(b - a) > half else 0.4, half)
    return Comparison(StepDifference(found, "profiled", False), {"step.profiled_ms": found}, (), (), (), ())


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


def test_waterfall_rows_of_both_sides() -> None:
    rows = waterfall_changes([report()], [report()])
    assert [r["loss"] for r in rows] == ["exposed_transfer", "achieved"]
    assert waterfall_changes([report()], [report(waterfall=[])]) == []


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("step_ms>5%", False), ("step_ms>15%", True), ("step_ms<-5%", True), ("mfu<-5%", False),
        ("step.profiled_ms>5%", False), ("step.tokens_per_s<-5%", False), ("step_ms>12", True), ("step_ms>10.5", False),
        ("collectives.*.wait_ms>5%", True), ("findings.straggler.saving_pct>5", True), ("stragglers.count>0", True),
    ],
)  # fmt: skip
def test_gates_judge_the_change_or_the_second_side(text: str, holds: bool) -> None:
    assert judged(text).holds is holds


def test_a_single_number_is_judged_as_it_is_and_said_to_be_one() -> None:
    worse = [{"op": "all_reduce", "group": "dp", "wait_ms": 1.5}, {"op": "all_reduce", "group": "tp", "wait_ms": 2.0}]
    result = judged("collectives.all_reduce.wait_ms>5%", collectives=worse)
    assert not result.holds and ONE_VALUE in result.said


REPORT: dict[str, Any] = {
    "schema": 1,
    "run": {"name": "x", "world_size": 2},
    "ranks": [{"rank": 0, "idle_ms": 1.0, "step_ms": [10.0, 11.0]}, {"rank": 1, "idle_ms": 7.0, "step_ms": [12.0]}],
    "step": {
        "profiled_ms": 12.0,
        "unprofiled_ms": 10.0,
        "budget": [{"part": "wait", "ms_per_step": 2.0, "pct": 20.0}, {"part": "forward", "ms_per_step": 8, "pct": 80}],
    },
    "efficiency": {"mfu": None, "hfu": 0.4},
    "collectives": [{"op": "all_reduce", "busbw_gb_per_s": 3.0}, {"op": "all_reduce", "busbw_gb_per_s": 9.0}],
    "checks": [
        {"id": "data_loading_pct", "value": 35.0, "status": "fail"},
        {"id": "memory_pct_of_limit", "value": None},
    ],
    "findings": [{"id": "straggler", "saving_pct": 12.0, "ranks": [1]}],
    "stragglers": [{"rank": 1, "late_ms_per_step": 4.0}],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_ms", [10.0]), ("data_loading_pct", [35.0]), ("checks.data_loading_pct.value", [35.0]),
        ("wait_pct", [20.0]), ("hfu", [0.4]), ("step.budget.forward.pct", [80]), ("ranks.*.idle_ms", [1.0, 7.0]),
        ("ranks.0.step_ms.1", [11.0]), ("collectives.all_reduce.busbw_gb_per_s", [3.0, 9.0]),
        ("findings.straggler.saving_pct", [12.0]), ("findings.data-loading.saving_pct", [0.0]),
        ("stragglers.count", [1]), ("efficiency.mfu", [None]),
    ],
)  # fmt: skip
def test_names_lead_to_their_numbers(name: str, value: list[float | None]) -> None:
    assert numbers(REPORT, name) == value


def test_the_profiled_step_stands_in_where_no_other_is_known() -> None:
    assert numbers({"step": {"profiled_ms": 12.0, "unprofiled_ms": None}}, "step_ms") == [12.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("data_loadin_pct", "did you mean data_loading_pct"),
        ("findings.stragler.saving_pct", "findings.straggler.saving_pct"),
        ("ranks.7.idle_ms", "unknown metric 'ranks.7.idle_ms'"),
        ("step.budget", "is a list"),
        ("checks.data_loading_pct.status", "is text"),
    ],
)
def test_names_that_are_no_numbers_are_refused_with_what_is_near(name: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        numbers(REPORT, name)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_gate_on_an_unknown_number_does_not_hold() -> None:
    for name in ("mfu", "memory_pct_of_limit"):
        (result,) = judge([parse_gate(f"{name}<0")], REPORT)
        assert not result.holds and result.value is None and "is unknown, so the gate fails" in result.said


def test_a_change_in_percent_needs_two_runs() -> None:
    with pytest.raises(UsageError, match="two runs"):
        judge([parse_gate("step_ms>5%")], REPORT)
