"""Settings travel as one variable; the window follows from them and the step number alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UsageError
from stepscope.record.config import RecordConfig, default_out, ranks_from
from stepscope.record.window.schedule import census_step, phase_of


def phases(config: RecordConfig, steps: int) -> str:
    return "".join(
        {"before": "b", "warmup": "w", "window": "A", "after": "a"}[phase_of(s, config)[0]] for s in range(steps)
    )


def test_settings_survive_the_environment() -> None:
    config = RecordConfig(out="a b", command=("python", "x.py"), ranks=(0, 3), activities=("cpu",), max_seconds=1.5)
    assert RecordConfig.from_env(config.to_env()) == config
    assert RecordConfig.from_env({}) is None


def test_unknown_settings_of_a_newer_launcher_are_left_out() -> None:
    assert RecordConfig.from_env({"STEPSCOPE_RECORD": '{"out": "x", "from_the_future": 1}'}) == RecordConfig(out="x")


@pytest.mark.parametrize("text", ["no json", "[1]", '{"wait": -1}', '{"active": 0}', '{"tool": "perf"}'])
def test_bad_settings_are_one_line(text: str) -> None:
    with pytest.raises(UsageError) as e:
        RecordConfig.from_env({"STEPSCOPE_RECORD": text})
    assert "\n" not in str(e.value)


def test_output_folder_comes_from_the_usual_variable() -> None:
    assert default_out({"TORCH_TRACE_DIR": "traces"}) == "traces"
    assert default_out({}) == "stepscope-run"


@pytest.mark.parametrize(
    ("given_", "ranks"), [("all", None), (None, None), ("0", (0,)), ("3,0", (0, 3)), (2, (2,)), ([1, 1, 0], (0, 1))]
)
def test_ranks_by_text_number_or_list(given_: object, ranks: object) -> None:
    assert ranks_from(given_) == ranks  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "a", "-1", "0,,1"])
def test_bad_ranks_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        ranks_from(text)


def test_steps_first_to_last() -> None:
    assert phases(RecordConfig().with_steps(4, 6), 8) == "bbwwAAaa"
    assert phases(RecordConfig().with_steps(1, 3), 4) == "wAAa"
    assert phases(RecordConfig().with_steps(0, 2), 3) == "AAa"
    with pytest.raises(UsageError):
        RecordConfig().with_steps(3, 3)


def test_repeat_counts_wait_warmup_and_active_each_time() -> None:
    config = RecordConfig(wait=2, warmup=1, active=1, repeat=2)
    assert phases(config, 10) == "bbwAaawAaa"
    assert [phase_of(s, config)[1] for s in (3, 7)] == [0, 1]


def test_light_mode_has_no_window() -> None:
    assert phases(RecordConfig(light=True), 30) == "b" * 30


@given(st.integers(0, 9), st.integers(0, 4), st.integers(1, 6), st.integers(1, 3))
def test_window_has_exactly_the_steps_asked_for(wait: int, warmup: int, active: int, repeat: int) -> None:
    config = RecordConfig(wait=wait, warmup=warmup, active=active, repeat=repeat)
    seen = phases(config, (wait + warmup + active) * repeat + 5)
    assert seen.count("A") == active * repeat and seen.count("w") == warmup * repeat
    counted = census_step(config)
    assert counted is not None and seen[counted] in "ba"
