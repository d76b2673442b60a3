"""Work of one rank's helper process while the job runs, in addition to writing: it answers requests and monitors.

All of it runs in the helper, a few times a second, on small files; where one of them cannot be read or written the rest
goes on. The training process receives two messages only, on a separate thread: a window that all ranks will profile,
and the request for its training thread's stack.
"""

import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.contract.lateness import median
from stepscope.contract.live import (
    LIVE_FOLDER,
    PLAN,
    REQUEST,
    RankStatus,
    WindowPlan,
    WindowRequest,
    read_plan,
    read_request,
    read_status,
    status_file,
)
from stepscope.contract.run_folder import SCHEMA, facts_file, json_object_in
from stepscope.record.helper.claim import create_whole
from stepscope.record.window.trace_file import place_whole

# A profile window requested while the job runs: which steps, or why not. One rank decides for all.
#
#     every rank   a request exists    ->  its newest step and its step time, in its own file
#     rank 0       all have answered   ->  a plan: steps that no rank will have reached when it receives the plan
#     every rank   the plan exists     ->  sent to the training process
#
# Nothing here waits: each helper checks when it wakes. Ranks answer at different moments, so a rank may be further than
# its answer: the plan leaves a margin for that, and a rank that receives it too late records what is left.

WARMUP_STEPS = 2
# time to wait for the ranks' answers, in addition to a few checks
ASKED_WINDOW_ANSWER_S = 10.0
_LOOKS = 4
_MAX_NAMED = 4


class Rules(NamedTuple):
    """Rank 0's limits of a plan."""

    world_size: int
    #: before which the run's own windows are not over
    free_step: int
    #: of the next window
    number: int
    #: interval of the helpers' checks
    look_s: float
    #: since the end of the last requested window; None where there was none
    since_last_s: float | None
    pause_s: float
    why_never: str | None = None


def plan_for(
    request: WindowRequest, answers: Mapping[int, RankStatus], rules: Rules, *, waited_s: float
) -> WindowPlan | None:
    """Return the plan for a request, refused or not; None where answers are still to come."""
    refused = _refusal(answers, rules, waited_s)
    if refused is not None:
        return WindowPlan(request.id, refused=refused)
    if len(answers) < rules.world_size:
        return None
    step_s = max(min(status.step_s or 0.0 for status in answers.values()), 1e-4)
    room_s = waited_s + _LOOKS * rules.look_s + 1.0
    reached = max(status.step or 0 for status in answers.values()) + 1
    ready = max(reached + math.ceil(room_s / step_s), rules.free_step)
    first = ready + WARMUP_STEPS
    return WindowPlan(
        request.id, first, first + request.steps, WARMUP_STEPS, rules.number, by=request.by, since=request.since
    )


def _refusal(answers: Mapping[int, RankStatus], rules: Rules, waited_s: float) -> str | None:
    if rules.why_never is not None:
        return rules.why_never
    if rules.since_last_s is not None and rules.since_last_s < rules.pause_s:
        left_s = math.ceil(rules.pause_s - rules.since_last_s)
        return f"the last window was over {rules.since_last_s:.0f} s ago; try again in {left_s} s"
    for rank, status in sorted(answers.items()):
        if status.stall is not None:
            return f"rank {rank} has taken no step for {status.stall.for_s:.0f} s; stepscope watch shows where it is"
    silent = [rank for rank in range(rules.world_size) if rank not in answers]
    if silent and waited_s > ASKED_WINDOW_ANSWER_S + _LOOKS * rules.look_s:
        named = ", ".join(map(str, silent[:_MAX_NAMED])) + (", ..." if len(silent) > _MAX_NAMED else "")
        many = "rank" if len(silent) == 1 else "ranks"
        return f"{many} {named} did not answer within {waited_s:.0f} s: dead, or on a host that is down"
    return None


# System information about a process that does not answer: its state, and the kernel call that it waits in.

_STATES = {
    "R": "it runs: a call in C holds the interpreter's lock",
    "S": "it sleeps in a call that holds the interpreter's lock",
    "D": "it waits for the kernel: storage or a driver",
    "T": "it was stopped by a signal",
    "t": "a debugger holds it",
    "Z": "it has ended",
}


def _process_state(pid: int, *, proc: Path = Path("/proc")) -> str:
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        state = text.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "no answer from its interpreter"
    waits_in = _waits_in(proc / str(pid) / "wchan")
    known = _STATES.get(state, f"state {state}")
    return f"no answer from its interpreter; {known}{f' ({waits_in})' if waits_in else ''}"


def _waits_in(path: Path) -> str:
    try:
        found = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return found[:60] if found not in ("", "0") else ""


# Whether a rank has taken no step for longer than its steps take, and when to request its stack.
#
# A helper receives steps a few times a second, or once per step where they are longer. After a gap of more than twice
# the longest of the last ones, and at least a second, it requests the stack: the answer is there within three step
# times. It repeats that after twice the time, and so on. An evaluation or a checkpoint is such a gap too: its stack
# shows which.


class StallWatch:
    """Notes when steps arrive, by a monotonic clock."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.asked_s: float | None = None  # when the rank's stack was requested last
        self._last_s: float | None = None
        self._gaps: deque[float] = deque(maxlen=32)
        self._ask_at_s: float | None = None

    def step_arrived(self, step: int, dur_s: float, now_s: float) -> bool:
        """Take in a step; return whether a stall has ended with it."""
        was_stalled = self.asked_s is not None
        gap_s = now_s - self._last_s if self._last_s is not None else dur_s
        if step > 0 and not was_stalled:  # the first one has everything to load
            self._gaps.append(max(gap_s, dur_s))
        self.step, self._last_s = step, now_s
        self.asked_s = self._ask_at_s = None
        return was_stalled

    @property
    def usual_s(self) -> float:
        return max(self._gaps, default=0.0)

    def for_s(self, now_s: float) -> float:
        return now_s - self._last_s if self._last_s is not None else 0.0

    def asks(self, now_s: float) -> bool:
        if self._last_s is None or len(self._gaps) < 3:
            return False
        if self._ask_at_s is None:
            self._ask_at_s = self._last_s + max(2.0 * self.usual_s, 1.0)
        if now_s < self._ask_at_s:
            return False
        self.asked_s = now_s
        self._ask_at_s = now_s + self.for_s(now_s)
        return True


def _stall_status(watch: StallWatch, answer: dict[str, Any], now_s: float) -> dict[str, Any]:
    return {"step": watch.step, "for_s": round(watch.for_s(now_s), 3), "usual_s": round(watch.usual_s, 4), **answer}


class Live:
    """Monitoring of one rank by its helper. `tell` sends a message to the training process."""

    def __init__(self, settings: dict[str, Any], *, rank: int, world_size: int, tell: Callable[[Any], None]) -> None:
        self.look_s = 0.5 + world_size * 0.002
        self._settings = settings
        self._rank = rank
        self._world_size = world_size
        self._tell = tell
        self._folder: Path | None = None
        self._next_look_s = 0.0
        self._stalls = StallWatch()
        self._stall: dict[str, Any] | None = None
        self._durations_s: deque[float] = deque(maxlen=32)
        self._answered: str | None = None
        self._told: str | None = None  # the plan that the training process has
        self._seen: tuple[str, float] | None = None  # rank 0: the request, and since when it is known
        self._planned: WindowPlan | None = None  # rank 0: the one that is under way
        self._next_number: int = settings.get("first_number", 0)
        self._last_over_s: float | None = None
        self._parent: int = settings.get("pid", 0)
        self._alarm = _alarm_window(settings, world_size) if rank == 0 else None
        self._export = _export(settings, rank=rank, stall_s=self._stalled_s)
        self._export_state: dict[str, Any] = {}

    def opens(self, folder: Path) -> None:
        self._folder = folder
        if self._export is not None:
            self._export.run = folder.name

    def step(self, line: dict[str, Any]) -> None:
        step, dur_ns = line.get("step"), line.get("dur_ns")
        if self._export is not None:
            self._export.metrics.line(line)
        if not isinstance(step, int) or not isinstance(dur_ns, int):
            return
        if not line.get("profiled"):
            self._durations_s.append(dur_ns / 1e9)
        if self._stalls.step_arrived(step, dur_ns / 1e9, time.monotonic()) and self._stall is not None:
            self._stall = None
            self._say()

    def facts(self, facts: dict[str, Any]) -> None:
        if self._export is not None:
            self._export.metrics.facts(facts)

    def meter(self, reading: Callable[[], dict[str, Any]]) -> None:
        """Take in what reads the energy so far."""
        if self._export is not None:
            self._export.metrics.reading = reading

    def where(self, answer: dict[str, Any]) -> None:
        """Take in where the training thread is."""
        if self._stalls.asked_s is not None:
            self._stall = _stall_status(self._stalls, answer, time.monotonic())
            self._say()

    def look(self) -> None:
        """Check for requests and stalls, at intervals."""
        now_s = time.monotonic()
        if self._folder is None or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + self.look_s
        with contextlib.suppress(OSError):
            asked_s = self._stalls.asked_s
            if asked_s is not None and self._stall is None and now_s - asked_s > 1.0:
                self._stall = _stall_status(self._stalls, {"silent": _process_state(self._parent)}, now_s)
                self._say()
            if self._settings.get("watch_stalls", True) and self._stalls.asks(now_s):
                self._tell({"where": True})
            self._look_for_request(self._folder, now_s)
            self._look_for_alarm(self._folder, now_s)
            if self._export is not None and self._export.state() != self._export_state:
                self._export_state = self._export.state()
                self._say()

    def ends(self, *, closed: bool) -> None:
        """Clean up after a job that ended normally; the last state of a killed one stays."""
        if self._export is not None:
            self._export.end()
        folder = self._folder
        if folder is None or not (folder / LIVE_FOLDER).is_dir():
            return
        names = [status_file(self._rank), *((REQUEST, PLAN) if self._rank == 0 else ())] if closed else [REQUEST]
        for name in names:
            with contextlib.suppress(OSError):
                (folder / LIVE_FOLDER / name).unlink()
        with contextlib.suppress(OSError):
            (folder / LIVE_FOLDER).rmdir()  # the last rank's

    def _look_for_alarm(self, folder: Path, now_s: float) -> None:
        if self._alarm is None:
            return
        rules, step = self._rules(now_s), self._stalls.step or 0
        is_free = self._planned is None and rules.why_never is None and step >= rules.free_step
        is_free &= rules.since_last_s is None or rules.since_last_s >= rules.pause_s
        request = self._alarm.look(folder, now_s, is_free=is_free and read_request(folder) is None)
        if request is not None:
            (folder / LIVE_FOLDER).mkdir(exist_ok=True)
            create_whole(folder / LIVE_FOLDER / REQUEST, json.dumps({"schema": SCHEMA, **request._asdict()}) + "\n")

    def _look_for_request(self, folder: Path, now_s: float) -> None:
        request = read_request(folder)
        if request is None:
            self._seen = None
            return
        if request.id != self._answered:
            self._answered = request.id
            self._say()
        if self._rank == 0:
            self._decide(folder, request, now_s)
        plan = read_plan(folder)
        if plan is not None and plan.id == request.id != self._told and plan.refused is None:
            self._told = plan.id
            self._tell({"window": plan._asdict()})

    def _decide(self, folder: Path, request: WindowRequest, now_s: float) -> None:
        if self._planned is not None:
            self._end_or_refuse(folder, request, self._planned, now_s)
            return
        if self._seen is None or self._seen[0] != request.id:
            self._seen = (request.id, now_s)
        waited_s = now_s - self._seen[1]
        plan = plan_for(request, self._answers(folder, request.id), self._rules(now_s), waited_s=waited_s)
        if plan is None:
            return
        self._put(PLAN, plan._asdict())
        if plan.refused is not None:
            self._forget_request(folder)
        else:
            self._planned = plan
            self._next_number += 1

    def _end_or_refuse(self, folder: Path, request: WindowRequest, planned: WindowPlan, now_s: float) -> None:
        if self._is_over(folder, planned):
            self._planned, self._last_over_s = None, now_s
            if request.id == planned.id:
                self._forget_request(folder)
        elif request.id != planned.id:  # the one before was taken back
            refused = f"another window is under way, steps {planned.first} to {planned.last - 1}"
            self._put(PLAN, WindowPlan(request.id, refused=refused)._asdict())
            self._forget_request(folder)

    def _rules(self, now_s: float) -> Rules:
        return Rules(
            world_size=self._world_size,
            free_step=self._settings.get("free_step", 0),
            number=self._next_number,
            look_s=self.look_s,
            since_last_s=None if self._last_over_s is None else now_s - self._last_over_s,
            pause_s=self._settings.get("pause_s", 0.0),
            why_never=self._settings.get("why_no_window"),
        )

    def _answers(self, folder: Path, request_id: str) -> dict[int, RankStatus]:
        said = ((rank, read_status(folder, rank)) for rank in range(self._world_size))
        return {rank: status for rank, status in said if status is not None and status.answered == request_id}

    def _is_over(self, folder: Path, plan: WindowPlan) -> bool:
        chosen = self._settings.get("profiled_ranks")
        wanted = range(self._world_size) if chosen is None else [r for r in chosen if r < self._world_size]
        return all(window_outcome(folder, rank, plan.window) is not None or has_ended(folder, rank) for rank in wanted)

    def _forget_request(self, folder: Path) -> None:
        self._seen = None
        with contextlib.suppress(OSError):
            (folder / LIVE_FOLDER / REQUEST).unlink()

    def _say(self) -> None:
        typical_s = median(self._durations_s) if self._durations_s else None
        status = {
            "schema": SCHEMA,
            "rank": self._rank,
            "step": self._stalls.step,
            "step_s": typical_s,
            "answered": self._answered,
            "stall": self._stall,
            **self._export_state,
        }
        self._put(status_file(self._rank), status)

    def _stalled_s(self) -> float:
        return self._stalls.for_s(time.monotonic()) if self._stalls.asked_s is not None else 0.0

    def _put(self, name: str, content: dict[str, Any]) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            (self._folder / LIVE_FOLDER).mkdir(exist_ok=True)
            place_whole(json.dumps(content).encode() + b"\n", self._folder / LIVE_FOLDER / name)


def _alarm_window(settings: dict[str, Any], world_size: int) -> Any:
    if not settings.get("on_alarm"):
        return None
    from stepscope.record.live.alarm_window import AlarmWindow  # only then: the helper has to be there soon

    return AlarmWindow(
        steps=settings["on_alarm"],
        world_size=world_size,
        pause_s=settings["alarm_pause_s"],
        max_windows=settings["max_alarm_windows"],
    )


def _export(settings: dict[str, Any], **about: Any) -> Any:
    if not settings.get("metrics"):
        return None
    from stepscope.record.live.export import Export  # only then: the helper has to be there soon

    return Export(settings, **about)


def window_outcome(folder: Path, rank: int, window: int) -> dict[str, Any] | None:
    """Return the outcome of a window on one rank, None where that is not known yet.

    `{"status", "name", "reason", "first_step", "last_step", "bytes"}`; status is `written` where there is a trace.
    """
    facts = json_object_in(folder / facts_file(rank))
    outcomes = [w for w in _dicts(facts.get("windows")) if w.get("window") == window]
    if not outcomes:
        return None
    files = [f for f in _dicts(facts.get("files")) if f.get("name") == outcomes[-1].get("name") is not None]
    return {**outcomes[-1], **(files[-1] if files else {})}


def has_ended(folder: Path, rank: int) -> bool:
    """Return whether a rank's helper has seen its training process end."""
    return json_object_in(folder / facts_file(rank)).get("ended") in ("closed", "killed")


def _dicts(found: object) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
