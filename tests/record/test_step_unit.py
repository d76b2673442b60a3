"""What `--step-of` takes for a unit, and what it refuses."""

import pytest

from stepscope.errors import UsageError
from stepscope.record.loop.steps import COUNT, LOADER, OPTIMIZER, StepUnit, unit_from


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
