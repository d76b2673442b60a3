"""Settings travel as one variable; the window follows from them and the step number alone; usual names are taken."""

import pytest
from hypothesis import given, strategies as st
from torch.profiler import schedule

from stepscope.errors import UsageError
from stepscope.record.config import RecordConfig
from stepscope.record.loop.steps import COUNT, LOADER, OPTIMIZER, StepUnit, unit_from
from stepscope.record.profile import profile, window_of
from stepscope.record.window.schedule import census_step, phase_of


def phases(config: RecordConfig, steps: int) -> str:
    return "".join(
        {"before": "b", "warmup": "w", "window": "A", "after": "a"}[phase_of(s, config)[0]] for s in range(steps)
    )


def test_settings_survive_the_environment() -> None:
    config = RecordConfig(out="a b", command=("python", "x.py"), ranks=(0, 3), activities=("cpu",), max_seconds=1.5)
    assert RecordConfig.from_env(config.to_env()) == config
    assert RecordConfig.from_env({}) is None


@pytest.mark.parametrize("text", ["no json", "[1]", '{"wait": -1}', '{"active": 0}', '{"tool": "perf"}'])
def test_bad_settings_are_one_line(text: str) -> None:
    with pytest.raises(UsageError) as e:
        RecordConfig.from_env({"STEPSCOPE_RECORD": text})
    assert "\n" not in str(e.value)


@given(st.integers(0, 9), st.integers(0, 4), st.integers(1, 6), st.integers(1, 3))
def test_window_has_exactly_the_steps_asked_for(wait: int, warmup: int, active: int, repeat: int) -> None:
    config = RecordConfig(wait=wait, warmup=warmup, active=active, repeat=repeat)
    seen = phases(config, (wait + warmup + active) * repeat + 5)
    assert seen.count("A") == active * repeat and seen.count("w") == warmup * repeat
    counted = census_step(config)
    assert counted is not None and seen[counted] in "ba"


def test_units() -> None:
    assert unit_from(None) == unit_from("auto") == StepUnit()
    assert unit_from("loader") == StepUnit(LOADER)
    assert unit_from("optimizer") == unit_from("1") == StepUnit(COUNT, 1)
    assert unit_from("4") == StepUnit(COUNT, 4)
    assert unit_from("Adam") == unit_from("Adam#0") == StepUnit(OPTIMIZER, name="Adam")
    assert unit_from("Adam#1") == StepUnit(OPTIMIZER, name="Adam", index=1)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "\u00b2", "\u0663", "9" * 5000, "Adam#", "Adam#\u00b2", "Adam#" + "9" * 400]
)
def test_what_is_no_unit_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(UsageError, match="give loader, optimizer, a number"):
        unit_from(text)


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ({"wait": 1, "warmup": 1, "active": 3, "repeat": 1}, (1, 1, 3, 1)),
        ({"wait": 2, "warmup": 0, "active": 1, "repeat": 3}, (2, 0, 1, 3)),
        ({"wait": 1, "warmup": 1, "active": 2}, (1, 1, 2, 1)),
        ({"wait": 0, "warmup": 2, "active": 2, "repeat": 1, "skip_first": 5}, (5, 2, 2, 1)),
    ],
)
def test_a_schedule_is_read_by_asking_it(given: dict, window: tuple[int, ...]) -> None:
    found = window_of(schedule(**given))
    assert (found["wait"], found["warmup"], found["active"], found["repeat"]) == window


def test_a_schedule_that_never_records_and_names_nobody_knows_are_refused() -> None:
    with pytest.raises(UsageError, match="records nothing"):
        window_of(lambda step: "NONE")
    with pytest.raises(TypeError):
        profile(no_such_setting=1)
