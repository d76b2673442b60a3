"""Does the job trigger a profile window now? Rank 0's helper reads all step logs and judges them (`on_alarm`).

    step logs of all ranks  --every few seconds-->  alarms (`contract.alarms`)  --one rises-->  a request for a window

The rest is the same as for any requested window: all ranks agree on its steps by files, and no collective is called.
Triggers are separated by a pause and limited to a few per job, and an alarm that stays up triggers once. One that rises
in the pause waits for its end, and is dropped if it falls before.
"""

import json
import math
import secrets
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.contract.live import (
    BAD,
    BETWEEN,
    GOOD,
    GOOD_SLOWDOWN,
    LOOKS,
    REGRESSION,
    STRAGGLER,
    Alarms,
    Change,
    Key,
    RankScore,
    WindowRequest,
    rank_scores,
    regression_state,
)
from stepscope.contract.run_folder import steps_file
from stepscope.contract.step_line import WARMUP, device_ns_of, waited_ns
from stepscope.record.step_statistics import error_of_median
from stepscope.units import NS_PER_MS, ms


class LogTail:
    """One rank's log from its beginning; `read` continues where it ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the steps that are new; a last line that is still being written waits for the next time."""
        try:
            with self._path.open("rb") as f:
                f.seek(self._at)
                data = f.read(4 << 20)
        except OSError:  # not there yet, or on storage that fails for a while
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [step for line in whole.splitlines() if (step := _step(line)) is not None]


def _step(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return None
    return found if isinstance(found.get("dur_ns"), int) else None


# of every rank; with ten, two equal ranks on a busy machine appear unequal three times in a row too often
STEPS_PER_LOOK = 20
# at the start and after a window: no others are held against them
_SETTLING_STEPS = 10
_FIRST_STEPS = 50

Line = Mapping[str, Any]
# step and time in ms
Series = list[tuple[int, float]]


class AlarmWindow:
    """When a window is triggered, and why; `look` may be called at any rate."""

    def __init__(self, *, steps: int, world_size: int, pause_s: float, max_windows: int) -> None:
        self._steps, self._pause_s, self._left = steps, pause_s, max_windows
        self._period_s = 2.0 + world_size * 0.01
        self._ranks = range(world_size)
        self._tails: list[LogTail] = []
        self._judge = JobAlarms(world_size)
        self._waiting: dict[Key, Change] = {}  # alarms that no window has been pulled for
        self._next_look_s = 0.0
        self._next_pull_s = 0.0

    def look(self, folder: Path, now_s: float, *, is_free: bool) -> WindowRequest | None:
        """Return a window to request, where an alarm has risen and no pause or limit prevents it."""
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + self._period_s
        self._tails = self._tails or [LogTail(folder / steps_file(rank)) for rank in self._ranks]
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
        self._new: list[list[Line]] = [[] for _ in range(world_size)]
        self._waits = [False] * world_size  # whether a rank is known to wait for others at all
        self._device_ns: list[int | None] = [None] * world_size  # with NCCL: in collectives, per step
        self._to_settle = _SETTLING_STEPS
        self._first_ns: list[int] = []
        # own times by rank, step times of rank 0
        self._looks: deque[tuple[Mapping[int, Series], Series]] = deque(maxlen=LOOKS + 1)

    def take(self, lines: Mapping[int, Sequence[Line]]) -> list[Change]:
        for rank, new in lines.items():
            self._waits[rank] = self._waits[rank] or any(waited_ns(line) is not None for line in new)
            known = [ns for line in new if (ns := device_ns_of(line)) is not None]
            self._device_ns[rank] = known[-1] if known else self._device_ns[rank]
            self._new[rank] += [line for line in new if line["step"] >= _SETTLING_STEPS and _is_plain(line)]
            del self._new[rank][:-500]
        self._take_first(lines.get(0, ()))
        if len({ns is None for ns in self._device_ns}) > 1:  # ranks read their recorders at different times
            return []
        own_ms = {rank: self._own_ms(rank) for rank in range(len(self._new))}
        if not all(len(times) >= STEPS_PER_LOOK for times in own_ms.values()):
            return []
        self._looks.append((own_ms, [(line["step"], line["dur_ns"] / NS_PER_MS) for line in self._new[0]]))
        newest = min(times[-1][0] for times in own_ms.values())
        changes = self._alarms.update(newest, {**_straggler_states(own_ms), **self._regression()})
        self._new = [[] for _ in self._new]
        return [self._dated(change) if change.rises else change for change in changes]

    def _own_ms(self, rank: int) -> Series:
        least_ns = min((ns or 0 for ns in self._device_ns), default=0)  # the transfers, which are no wait
        waits = ((line, waited_ns(line) if self._waits[rank] else 0) for line in self._new[rank])
        known = [(line, waited) for line, waited in waits if waited is not None]
        return [(line["step"], (line["dur_ns"] - waited + least_ns) / NS_PER_MS) for line, waited in known]

    def _take_first(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if not _is_plain(line):
                self._to_settle, self._first_ns = _SETTLING_STEPS, []
                self._alarms.forget((REGRESSION, None))
            elif self._to_settle:
                self._to_settle -= 1
            elif len(self._first_ns) < _FIRST_STEPS:
                self._first_ns.append(line["dur_ns"])

    def _regression(self) -> dict[Key, tuple[str, str]]:
        if len(self._first_ns) < _FIRST_STEPS or not (first_ns := statistics.median(self._first_ns)):
            return {}
        now_ns = statistics.median(statistics.median(line["dur_ns"] for line in new) for new in self._new)
        words = f"steps take {ms(now_ns):.1f} ms, {ms(first_ns):.1f} ms at first ({now_ns / first_ns:.2f} x)"
        return {(REGRESSION, None): (regression_state(now_ns, first_ns), words)}

    def _dated(self, change: Change) -> Change:
        if change.rank is None:
            times = [pair for _, steps_ms in self._looks for pair in steps_ms]
            good_ms, now_ms = statistics.median(self._first_ns) / NS_PER_MS, _median(self._looks[-1][1])
        else:
            times = [pair for own_ms, _ in self._looks for pair in own_ms[change.rank]]
            newest = {rank: _median(of_rank) for rank, of_rank in self._looks[-1][0].items()}
            now_ms = newest.pop(change.rank)
            good_ms = statistics.median(newest.values())
        since = _step_of_change(times, (good_ms + now_ms) / 2)
        return Change(change.kind, change.rank, True, change.text, since=since)


def _step_of_change(times: Series, bound: float) -> int:
    """Return the step from which on times are above a bound: the start with the most above and the fewest below it.

    >>> _step_of_change([(7, 1.0), (8, 9.0), (9, 1.0), (10, 9.0), (11, 9.0), (12, 1.0), (13, 9.0)], 5.0)
    10
    """
    best, total, since = 0, 0, times[-1][0]
    for step, time in reversed(times):
        total += 1 if time > bound else -1
        if total > best:
            best, since = total, step
    return since


def _median(times: Series) -> float:
    return statistics.median(time for _, time in times)


def _straggler_states(own_ms: Mapping[int, Series]) -> dict[Key, tuple[str, str]]:
    scores = rank_scores({rank: _median(times) for rank, times in own_ms.items()})
    errors_ms = {rank: error_of_median([time for _, time in times]) for rank, times in own_ms.items()}
    return {
        (STRAGGLER, score.rank): (
            _state(score, errors_ms),
            f"rank {score.rank} is {score.late_ms:.2f} ms late per step ({score.slowdown:.2f} x the others)",
        )
        for score in scores
    }


def _state(score: RankScore, errors_ms: Mapping[int, float]) -> str:
    others = [error for rank, error in errors_ms.items() if rank != score.rank]
    error_ms = math.hypot(errors_ms[score.rank], statistics.fmean(others) / math.sqrt(len(others)))
    if score.straggler and score.late_ms > 2 * error_ms:
        return BAD
    return GOOD if score.slowdown < GOOD_SLOWDOWN else BETWEEN


def _is_plain(line: Line) -> bool:
    return not line.get("profiled") and line.get("phase") != WARMUP
