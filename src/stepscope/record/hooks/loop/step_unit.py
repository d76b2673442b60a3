"""What one step is, where that is a matter of choice: `--step-of loader`, `--step-of 4`, `--step-of Adam#1`.

auto          all optimizers have stepped; see `steps`
loader        a batch is asked for and something was trained since the last step
4             four optimizer steps, by whichever
Adam, Adam#1  a step of the first (second) Adam that steps
"""

from dataclasses import dataclass

from stepscope.errors import UsageError

AUTO, LOADER, OPTIMIZER, COUNT = "auto", "loader", "optimizer", "count"
_MAX_DIGITS = 9


@dataclass(frozen=True)
class StepUnit:
    """The chosen unit: `count` optimizer steps, or the optimizer `name` that is number `index` of its class."""

    kind: str = AUTO
    count: int = 1
    name: str = ""
    index: int = 0


def unit_from(text: str | None) -> StepUnit:
    """Return the unit that `--step-of` names."""
    if text is None or text.lower() == AUTO:
        return StepUnit()
    if text.lower() == LOADER:
        return StepUnit(LOADER)
    if text.lower() == OPTIMIZER:
        return StepUnit(COUNT, 1)
    if _is_count(text) and int(text) > 0:
        return StepUnit(COUNT, int(text))
    name, _, index = text.partition("#")
    if name.isidentifier() and (not _ or _is_count(index)):
        return StepUnit(OPTIMIZER, name=name, index=int(index or 0))
    raise UsageError(
        f"--step-of {text[:40]!r}: give loader, optimizer, a number of optimizer steps, or a name, as Adam or Adam#1"
    )


def _is_count(text: str) -> bool:
    """Return whether a text is a whole number that steps can be counted by, in plain digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
