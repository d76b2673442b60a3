"""A watched job from look to look: its newest picture, its alarms, its stalls, and the attempt that it is in."""

import time
from pathlib import Path

from stepscope.analyze.live import GivenNumbers, Picture, explained, picture_of, states_of
from stepscope.cli.given.ask import ask_for_window
from stepscope.cli.given.attempts import newest_attempt
from stepscope.contract.live import Alarms
from stepscope.contract.run_folder import of_window
from stepscope.errors import InputError
from stepscope.run.running import Running, RunningJob
from stepscope.units import printable

# for which a job that may restart is waited for
_RESTART_S = 60.0


class WatchedJob:
    """A job from look to look: its newest picture, its alarms, and lines that were not printed yet."""

    def __init__(self, folder: Path, given: GivenNumbers, *, trigger: int | None = None) -> None:
        self.folder = folder
        self.picture: Picture | None = None
        self.stalls: list[str] = []
        self.is_over = False
        self.news: list[str] = []
        self.alarms = Alarms()
        self._given = given
        self._trigger = trigger
        self._job = RunningJob(folder)
        self._over_since_s: float | None = None

    def look(self) -> bool:
        """Look once; return whether the job is over and will not come back."""
        self._follow_restart()
        running = self._job.look()
        if not running.ranks:
            raise InputError(f"{self.folder}: no step log is there; give the run folder that stepscope record named")
        self.picture = picture_of(running, self._given)
        self._hear_alarms(self.picture)
        self._hear_stalls(running)
        self.is_over = running.is_over
        if not running.is_over:
            self._over_since_s = None
            return False
        now_s = time.monotonic()
        self._over_since_s = self._over_since_s or now_s
        return not _may_restart(running) or now_s - self._over_since_s > _RESTART_S

    def _follow_restart(self) -> None:
        newest = newest_attempt(self.folder)
        if newest != self.folder and any(newest.glob("rank*.steps.jsonl")):
            self.news.append(f"the job has restarted: {printable(str(newest))}")
            self.folder, self._job, self.alarms = newest, RunningJob(newest), Alarms()

    def _hear_alarms(self, picture: Picture) -> None:
        for change in self.alarms.update(picture.step, states_of(picture)):
            self.news.append(f"{'alarm' if change.rises else 'over'}: {change.text}")
            if change.rises and self._trigger is not None:
                self._pull_trigger(self._trigger, why=change.kind)

    def _pull_trigger(self, steps: int, *, why: str) -> None:
        try:
            plan = ask_for_window(self.folder, steps=steps, by=f"stepscope watch: {why}")
        except InputError as e:
            self.news.append(f"no window: {e}")
            return
        where = printable(str(self.folder / of_window(plan.window, "")))
        self.news.append(f"steps {plan.first} to {plan.last - 1} will be profiled: stepscope report {where}")

    def _hear_stalls(self, running: Running) -> None:
        found = {r.rank: s.stall for r in running.ranks if (s := r.status) is not None and s.stall is not None}
        lines = explained(found, len(running.ranks))
        if lines and _without_times(lines) != _without_times(self.stalls):
            self.news += lines
        elif self.stalls and not lines:
            self.news.append("all ranks take steps again")
        self.stalls = lines


def _may_restart(running: Running) -> bool:
    environment = running.facts.get("environment")
    if not isinstance(environment, dict):
        return False
    most, done = (environment.get(f"TORCHELASTIC_{name}") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    left = _count(most) - _count(done)
    return left > 0 and any(rank.ended == "killed" for rank in running.ranks)


def _count(value: object) -> int:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9 else 0


def _without_times(lines: list[str]) -> list[str]:
    return lines[1:]
