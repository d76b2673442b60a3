"""Settings travel as one variable; the window follows from them and the step number alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UsageError
from stepscope.record.config import RecordConfig
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
