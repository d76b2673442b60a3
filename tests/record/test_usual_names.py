"""Names of torch's profiler and of guides stand for our settings."""

import pytest

torch = pytest.importorskip("torch")
from torch.profiler import schedule  # noqa: E402

from stepscope.errors import UsageError  # noqa: E402
from stepscope.record.profile import (  # noqa: E402
    profile,
    window_of,
)


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


def test_usual_names_are_settings() -> None:
    made = profile(schedule=schedule(wait=3, warmup=1, active=2, repeat=1), trace_dir="here", rank0_only=True).config
    assert (made.out, made.wait, made.active, made.ranks) == ("here", 3, 2, (0,))
    assert profile(output_dir="there", wait=1).config.out == "there"


def test_a_schedule_that_never_records_and_names_nobody_knows_are_refused() -> None:
    with pytest.raises(UsageError, match="records nothing"):
        window_of(lambda step: "NONE")
    with pytest.raises(TypeError):
        profile(no_such_setting=1)
