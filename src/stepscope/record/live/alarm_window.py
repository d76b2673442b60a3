"""Does the job trigger a profile window now? Rank 0's helper reads all step logs and judges them (`on_alarm`).

    step logs of all ranks  --every few seconds-->  alarms (`contract.alarms`)  --one rises-->  a request for a window

The rest is the same as for any requested window: all ranks agree on its steps by files, and no collective is called.
Triggers are separated by a pause and limited to a few per job, and an alarm that stays up triggers once. One that rises
in the pause waits for its end, and is dropped if it falls before.
"""

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from stepscope.contract.lateness import first_late, lateness, median, own_times
from stepscope.contract.live import (
    LOOKS,
    REGRESSION,
    Alarms,
    Change,
    Key,
    WindowRequest,
    regression_state,
    straggler_states,
)
from stepscope.contract.run_folder import steps_file
from stepscope.contract.step_line import GrowingLog, counts, times_of_lines
from stepscope.units import ms

STEPS_PER_LOOK = 20
_KEPT_STEPS = 400
# for which an alarm that rises may have been so
_DATED_STEPS = (LOOKS + 1) * STEPS_PER_LOOK
# at the start and after a window: no others are held against them
_SETTLING_STEPS = 10
_FIRST_STEPS = 50

Line = Mapping[str, Any]


class AlarmWindow:
    """When a window is triggered, and why; `look` may be called at any rate."""

    def __init__(self, *, steps: int, world_size: int, pause_s: float, max_windows: int) -> None:
        self._steps, self._pause_s, self._left = steps, pause_s, max_windows
        self._period_s = 2.0 + world_size * 0.01
        self._ranks = range(world_size)
        self._tails: list[GrowingLog] = []
        self._judge = JobAlarms(world_size)
        self._waiting: dict[Key, Change] = {}  # alarms that no window has been pulled for
        self._next_look_s = 0.0
        self._next_pull_s = 0.0

    def look(self, folder: Path, now_s: float, *, is_free: bool) -> WindowRequest | None:
        """Return a window to request, where an alarm has risen and no pause or limit prevents it."""
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + self._period_s
        self._tails = self._tails or [GrowingLog(folder / steps_file(rank)) for rank in self._ranks]
        self.hear(self._judge.take({rank: tail.read() for rank, tail in enumerate(self._tails)}))
        return self.pull(now_s) if is_free else None

    def hear(self, changes: Sequence[Change]) -> None:
        for change in changes:
            key = (change.kind, change.rank)
            if change.since is not None:
                self._waiting[key] = change
            else:
                self._waiting.pop(key, None)

    def pull(self, now_s: float) -> WindowRequest | None:
        """Return the request for the alarms that wait, None where there is none, or it is too soon for one."""
        if not self._waiting or not self._left or now_s < self._next_pull_s:
            return None
        self._left -= 1
        self._next_pull_s = now_s + self._pause_s
        risen, self._waiting = list(self._waiting.values()), {}
        why = "; ".join(f"{one.text} since step {one.since}" for one in risen)
        return WindowRequest(secrets.token_hex(8), self._steps, f"alarm: {why}", max(one.since or 0 for one in risen))


class JobAlarms:
    """The alarms of a job by its own steps: `take` is given what is new in the logs of all ranks.

    A reading counts once every rank has enough steps with a known own time. Steps after a window are compared with the
    first ones after it, not with those before: what a profiler leaves behind must not trigger the next window.
    """

    def __init__(self, world_size: int) -> None:
        self._alarms = Alarms()
        self._lines: list[deque[Line]] = [deque(maxlen=_KEPT_STEPS) for _ in range(world_size)]
        self._looked_at = -1
        self._to_settle = _SETTLING_STEPS
        self._first_ns: list[int] = []

    def take(self, lines: Mapping[int, Sequence[Line]]) -> list[Change]:
        for rank, new in lines.items():
            self._lines[rank].extend(line for line in new if line["step"] >= _SETTLING_STEPS and counts(line))
        self._take_first(lines.get(0, ()))
        times = {rank: times_of_lines(kept) for rank, kept in enumerate(self._lines)}
        known = own_times(times, window_steps=_DATED_STEPS) if all(self._lines) else None
        if known is None:
            return []
        steps, own_ns = known
        first = sum(step <= self._looked_at for step in steps)
        new_ns = {rank: row[first:] for rank, row in own_ns.items()}
        if min(sum(not isnan(own) for own in row) for row in new_ns.values()) < STEPS_PER_LOOK:
            return []
        states = {**straggler_states(lateness(new_ns)), **self._regression(self._looked_at)}
        self._looked_at = steps[-1]
        changes = self._alarms.update(steps[-1], states)
        return [self._dated(change, steps, own_ns) if change.rises else change for change in changes]

    def _take_first(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if not counts(line):
                self._to_settle, self._first_ns = _SETTLING_STEPS, []
                self._alarms.forget((REGRESSION, None))
            elif self._to_settle:
                self._to_settle -= 1
            elif len(self._first_ns) < _FIRST_STEPS:
                self._first_ns.append(line["dur_ns"])

    def _regression(self, after: int) -> dict[Key, tuple[str, str]]:
        if len(self._first_ns) < _FIRST_STEPS or not (first_ns := median(self._first_ns)):
            return {}
        now_ns = median(median(x["dur_ns"] for x in kept if x["step"] > after) for kept in self._lines)
        words = f"steps take {ms(now_ns):.1f} ms, {ms(first_ns):.1f} ms at first ({now_ns / first_ns:.2f} x)"
        return {(REGRESSION, None): (regression_state(now_ns, first_ns), words)}

    def _dated(self, change: Change, steps: Sequence[int], own_ns: Mapping[int, Sequence[float]]) -> Change:
        if change.rank is not None:
            mine, *others = own_ns[change.rank], *(row for rank, row in own_ns.items() if rank != change.rank)
            columns = zip(steps, mine, *others, strict=True)
            beyond = [(step, own - median(rest)) for step, own, *rest in columns if not any(map(isnan, (own, *rest)))]
            low_ns = 0.0
        else:
            beyond = [(line["step"], line["dur_ns"]) for line in self._lines[0]]
            low_ns = median(self._first_ns)
        newest = [ns for _, ns in beyond[-STEPS_PER_LOOK:]]
        if not newest:
            return change._replace(since=self._looked_at)
        return change._replace(since=beyond[first_late([ns for _, ns in beyond], (low_ns + median(newest)) / 2)][0])
