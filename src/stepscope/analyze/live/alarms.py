"""What has been wrong for a while: alarms that rise late and fall late, so that one odd look rings no bell.

    alarm        bad                                                     good again
    straggler    late by 10 % and more, beyond chance                    late by less than 5 %
    regression   steps take over 1.2 times what they took at the start   under 1.1 times

An alarm rises after three looks in a row with new steps that are bad, and falls after three that are good; what lies
between the two bounds leaves it as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.analyze.live.picture import Picture
from stepscope.contract.late_ranks import DEFAULT_SLOWDOWN
from stepscope.units import ms

LOOKS = 3
NEW_STEPS = 5
"""since the last look that counted; waiting alone proves nothing"""
_GOOD_SLOWDOWN = 1.05
_BAD_REGRESSION, _GOOD_REGRESSION = 1.2, 1.1
STRAGGLER, REGRESSION = "straggler", "regression"
BAD, GOOD, BETWEEN = "bad", "good", "between"

Key = tuple[str, int | None]
"""the kind of an alarm and its rank, None for the whole job"""


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

    def update(self, picture: Picture) -> list[Change]:
        """Return the alarms that rise or fall with this look."""
        step = picture.step
        if step is None:
            return []
        if self._counted_step is not None and 0 <= step - self._counted_step < NEW_STEPS:
            return []
        self._counted_step = step
        return self.judge(states_of(picture))

    def judge(self, states: Mapping[Key, tuple[str, str]]) -> list[Change]:
        """Return the changes by `{key: (bad, good or between, words)}`."""
        changes = []
        for key, (state, words) in states.items():
            before, count = self._in_a_row.get(key, (BETWEEN, 0))
            self._in_a_row[key] = (state, count + 1 if state == before else 1)
            if self._in_a_row[key][1] < LOOKS:
                continue
            if state == BAD and key not in self.up:
                self.up[key] = words
                changes.append(Change(*key, rises=True, text=words))
            elif state == GOOD and key in self.up:
                del self.up[key]
                changes.append(Change(*key, rises=False, text=words))
            elif key in self.up and state == BAD:
                self.up[key] = words
        return changes


def states_of(picture: Picture) -> dict[Key, tuple[str, str]]:
    """Return for everything that has an alarm whether it is bad, good or between, and in words."""
    states: dict[Key, tuple[str, str]] = {}
    for rank in picture.ranks:
        late = rank.late
        if late is not None:
            is_bad, is_good = late.is_late(DEFAULT_SLOWDOWN), late.slowdown < _GOOD_SLOWDOWN
            how = f"{ms(late.late_ns):.2f} ms late per step ({late.slowdown:.2f} x the others)"
            words = f"rank {late.rank} is {how}" if not is_good else f"rank {late.rank} keeps up again"
            states[STRAGGLER, rank.rank] = (BAD if is_bad else GOOD if is_good else BETWEEN, words)
    if picture.step_ns is not None and picture.first_step_ns:
        ratio = picture.step_ns / picture.first_step_ns
        state = BAD if ratio > _BAD_REGRESSION else GOOD if ratio < _GOOD_REGRESSION else BETWEEN
        now, then = ms(picture.step_ns), ms(picture.first_step_ns)
        states[REGRESSION, None] = (state, f"steps take {now:.1f} ms, {then:.1f} ms at the start ({ratio:.2f} x)")
    return states
