"""What has been wrong for a while: alarms that rise late and fall late, so that one odd look rings no bell.

    alarm        bad                                                     good again
    straggler    late by 10 % and more, beyond chance                    late by less than 5 %
    regression   steps take over 1.2 times what they took at the start   under 1.1 times

An alarm rises after three looks in a row with new steps that are bad, and falls after three that are good; what lies
between the two bounds leaves it as it is. The job judges itself by this, and so does who watches it. Standard library
only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LOOKS = 3
NEW_STEPS = 5
"""since the last look that counted; waiting alone proves nothing"""
GOOD_SLOWDOWN = 1.05
_BAD_REGRESSION, _GOOD_REGRESSION = 1.2, 1.1
STRAGGLER, REGRESSION = "straggler", "regression"
BAD, GOOD, BETWEEN = "bad", "good", "between"

Key = tuple[str, int | None]
"""the kind of an alarm and its rank, None for the whole job"""
States = Mapping[Key, tuple[str, str]]
"""bad, good or between, and the same in words"""


@dataclass(frozen=True)
class Change:
    """An alarm that rises or falls."""

    kind: str
    rank: int | None
    rises: bool
    text: str


class Alarms:
    """Which alarms are up; `update` is told of every look."""

    def __init__(self) -> None:
        self.up: dict[Key, str] = {}
        self._in_a_row: dict[Key, tuple[str, int]] = {}
        self._counted_step: int | None = None

    def update(self, step: int | None, states: States) -> list[Change]:
        """Return the alarms that rise or fall with a look; `step` is the newest one in it."""
        if step is None or (self._counted_step is not None and 0 <= step - self._counted_step < NEW_STEPS):
            return []
        self._counted_step = step
        return self.judge(states)

    def judge(self, states: States) -> list[Change]:
        """Return the changes with a look that counts."""
        changes = []
        for key, (state, words) in states.items():
            before, count = self._in_a_row.get(key, (BETWEEN, 0))
            self._in_a_row[key] = (state, count + 1 if state == before else 1)
            if self._in_a_row[key][1] < LOOKS:
                continue
            if state == BAD and key not in self.up:
                changes.append(Change(*key, rises=True, text=words))
            elif state == GOOD and key in self.up:
                del self.up[key]
                changes.append(Change(*key, rises=False, text=words))
            if state == BAD:
                self.up[key] = words
        return changes

    def forget(self, key: Key) -> None:
        """Begin anew with one alarm, whatever it was."""
        self.up.pop(key, None)
        self._in_a_row.pop(key, None)


def regression_state(step_ns: float, first_step_ns: float) -> str:
    """Return whether steps take too long against the first ones."""
    ratio = step_ns / first_step_ns
    return BAD if ratio > _BAD_REGRESSION else GOOD if ratio < _GOOD_REGRESSION else BETWEEN
