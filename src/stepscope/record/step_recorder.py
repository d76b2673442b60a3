"""What a recorder does with a job's steps: regions and steps come in; step log, profiled window and facts go out.

Whoever finds the steps (hooks in an unmodified script, `stepscope.profile`, an integration) calls
`region_begin`, `region_end` and `step_end`; nothing else of the recorder is on the training path. Any failure
in here is one line on stderr, after which the recorder is off and training goes on.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda.nvtx

from stepscope.contract.step_line import BEFORE, EVALUATION, RegionTimes
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.groups import whereabouts
from stepscope.record.helper.handover import JobFacts, hand_over_files, introduce
from stepscope.record.helper.open_run import OpenRun
from stepscope.record.rank import place_of_process
from stepscope.record.samplers import Samplers
from stepscope.record.step_statistics import FIRST_STEPS
from stepscope.record.steps import OF_TRAINING, DeviceTimer, Regions, device_timer, summed
from stepscope.record.trial_end import end_trial
from stepscope.record.watched_steps import WatchedSteps

# The light log: one line per step (`contract.step_line`), profiled or not, on its way to `rankNNNNN.steps.jsonl`.
#
# On a CUDA device a line waits, in memory, for its device time, which is known when the device has passed the step's
# end.
#
# Each line leaves the process at once in the first steps, where jobs are short or fail, and while the profiler runs.
# Later lines leave two to ten times a second: several at once cost a fraction, because after a step's work nothing of
# ours is in the processor's caches. So a job that is killed loses at most its last half second.

_PERIOD_NS = 100_000_000
_FIRST_STEPS = 8

# when it ended by `perf_counter_ns`, its regions, and what `mark_end` returned then
PastStep = tuple[int, RegionTimes, dict[str, Any]]


class StepLog:
    """Builds lines and sends them on, in the order of the steps."""

    def __init__(self, send: Callable[..., None], timer: DeviceTimer | None) -> None:
        self._send = send
        self._timer = timer
        # returns the line, empty so far, of a step that ends now; `add_past` takes it in
        self.mark_end: Callable[[], dict[str, Any]] = dict if timer is None else timer.step_end
        self._ready: list[dict[str, Any]] = []
        self._next_send_ns = 0

    def add(self, line: dict[str, Any]) -> None:
        """Take in one step; it is sent soon, once its device time is known."""
        line["end_ns"] = end_ns = time.time_ns() - line.pop("late_ns", 0)
        line["start_ns"] = end_ns - line["dur_ns"]
        line["device_ns"] = None
        if self._timer is None:
            self._ready.append(line)
        else:
            self._timer.step_end(line)
            self._take_finished(all_of_them=False)
        is_soon = self._next_send_ns - _PERIOD_NS <= end_ns < self._next_send_ns  # False where the clock was set back
        if not is_soon or line["step"] < _FIRST_STEPS or line["profiled"]:
            self._next_send_ns = end_ns + _PERIOD_NS
            self._send_ready()

    def may_wait(self, step: int) -> bool:
        """Return whether the line of this step may leave a little later."""
        return step >= _FIRST_STEPS

    def add_past(self, steps: Sequence[PastStep], *, first: int, start_ns: int, phase: str) -> int:
        """Take in steps whose end was marked, by `perf_counter_ns`; return the longest one's time."""
        epoch_ns, longest_ns = time.time_ns() - time.perf_counter_ns(), 0
        for step, (end_ns, regions, line) in enumerate(steps, first):
            dur_ns = end_ns - start_ns
            line["text"] = (  # by hand: json takes three times as long
                f'{{"step": {step}, "start_ns": {start_ns + epoch_ns}, "end_ns": {end_ns + epoch_ns}, '
                f'"dur_ns": {dur_ns}, "profiled": false, "phase": "{phase}", '
                f'"regions": {{{_text_of(regions)}}}, "device_ns": '
            )
            if self._timer is None:
                self._ready.append(line)
            longest_ns = max(longest_ns, dur_ns)
            start_ns = end_ns
        if self._timer is not None:
            self._take_finished(all_of_them=False)
        self._next_send_ns = start_ns + epoch_ns + _PERIOD_NS
        self._send_ready()
        return longest_ns

    def restart(self) -> None:
        """Let the next step's device time begin after a pause."""
        if self._timer is not None:
            self._timer.restart()

    def flush(self) -> None:
        """Send every line that still waits, with or without its device time."""
        if self._timer is not None:
            self._take_finished(all_of_them=True)
        self._send_ready()

    def _take_finished(self, *, all_of_them: bool) -> None:
        assert self._timer is not None
        for line, device_ns in self._timer.finished(all_of_them=all_of_them):
            if line:  # not where its step was given up
                line["device_ns"] = device_ns
                self._ready.append(line)

    def _send_ready(self) -> None:
        ready, self._ready = self._ready, []
        if ready:
            self._send(*map(_text, ready))


def _text(line: dict[str, Any]) -> str:
    begun, device_ns = line.get("text"), line.get("device_ns")
    if begun is None:
        return json.dumps(line)
    return f"{begun}{'null' if device_ns is None else device_ns}}}"


def _text_of(regions: RegionTimes) -> str:
    return ", ".join([f'"{name}": {{"ns": {own["ns"]}, "n": {own["n"]}}}' for name, own in regions.items()])


# NVTX's stack of ranges as torch has it, without the Python functions that torch puts around it.
#
# Eight ranges are pushed and popped in a step that is only timed: each such function is a call of Python in a step
# where
# nothing of it is in the processor's caches. Where no tool listens they would be for nobody: NVTX says so in what it
# returns, and asks for a tool only once in the life of a process.


def nvtx_functions() -> Any:
    """Return an object with `range_push(name)` and `range_pop()`, None where no tool listens to ranges."""
    inner = getattr(torch.cuda.nvtx, "_nvtx", None)
    push, pop = getattr(inner, "rangePushA", None), getattr(inner, "rangePop", None)
    found: Any = SimpleNamespace(range_push=push, range_pop=pop)
    if push is None or pop is None:  # a torch that keeps them elsewhere
        found = torch.cuda.nvtx
    depth = found.range_push("stepscope")
    found.range_pop()
    return None if isinstance(depth, int) and depth < 0 else found


# Evaluation between two training steps: how long it took, as a region of the step that begins after it.
#
# What was loaded and computed in it is part of it; what else was marked (a checkpoint, a collection) keeps its name.

# evaluations that come as often are part of the routine, as a rollout in every step of reinforcement learning is
_MAX_STEPS_BETWEEN = 3
_NO_TIME = {"ns": 0, "n": 0}


class Evaluation:
    """The evaluation since the last step ended, if there was any."""

    def __init__(self) -> None:
        self._regions: RegionTimes = {}
        self._until_ns: int | None = None
        self._last_step: int | None = None  # the last one that had some
        self._between: int | None = None  # steps from the one before to it

    def is_routine(self, step: int) -> bool:
        """Return whether there was one a few steps ago as well."""
        return self._last_step is not None and step - self._last_step <= _MAX_STEPS_BETWEEN

    def next_step(self, step: int) -> int:
        """Return the first step from `step` on that begins with some where it comes every few steps, else `step`."""
        if self._last_step is None or self._between is None or self._between > _MAX_STEPS_BETWEEN:
            return step
        return step + (self._last_step - step) % self._between

    def add(self, regions: RegionTimes, *, step: int, step_start_ns: int, now_ns: int) -> None:
        """All that passed up to now, since the step began or since the last call, was evaluation."""
        since_ns = step_start_ns if self._until_ns is None else self._until_ns
        kept = {name: time for name, time in regions.items() if name not in OF_TRAINING}
        own_ns = max(0, now_ns - since_ns - sum(time["ns"] for time in kept.values()))
        count = 1 if self._until_ns is None else 0
        self._regions = summed(self._regions, {**kept, EVALUATION: {"ns": own_ns, "n": count}})
        self._until_ns = now_ns
        if self._last_step is not None and self._last_step != step:
            self._between = step - self._last_step
        self._last_step = step

    def leave_out(self, paused_ns: int) -> None:
        """The recorder took this long right after; it is in no step."""
        if self._until_ns is not None:
            self._until_ns += paused_ns

    def end_step(self, regions: RegionTimes) -> tuple[RegionTimes, int]:
        """Return the regions of the step with its evaluation, and how long that was; the next step has none yet."""
        if not self._regions:
            return regions, 0
        found, self._regions, self._until_ns = self._regions, {}, None
        return summed(found, regions), found.get(EVALUATION, _NO_TIME)["ns"]


# When did the current step begin, which regions has it, and how much of it is evaluation or a pause of ours?


class StepTimes:
    """The step that runs, by `perf_counter_ns`."""

    def __init__(self, regions: Regions) -> None:
        self.start_ns = perf_counter_ns()
        self.last_ns = 0  # how long the last step took, without its evaluation
        self._regions = regions
        self._held: tuple[int, RegionTimes] | None = None  # a moment at which the step may have ended
        self._evaluation = Evaluation()

    def begin(self) -> None:
        """Let the step begin now: what passed since the last one ended is in no step."""
        self.start_ns = perf_counter_ns()
        if self._regions.interruptions:
            self._regions.interruptions.taken(before_ns=self.start_ns)

    def may_end(self, at_ns: int) -> int:
        """Return the moment at which the step may turn out to have ended: `end(at_ns=...)`."""
        self._held = (at_ns, self._regions_until(at_ns))
        return at_ns

    def end(self, now_ns: int, at_ns: int | None) -> tuple[int, RegionTimes]:
        """Return the step's time and its regions, at a moment before now where that is known only later."""
        end_ns = now_ns if at_ns is None else at_ns
        held = self._held
        regions = held[1] if held is not None and held[0] == at_ns else self._regions_until(now_ns)
        self._held = None
        regions, evaluated_ns = self._evaluation.end_step(regions)
        dur_ns = end_ns - self.start_ns
        self.last_ns = dur_ns - evaluated_ns
        return dur_ns, regions

    def is_routine(self, step: int) -> bool:
        """Return whether evaluation in this step is part of what every few steps do."""
        return self._evaluation.is_routine(step)

    def begins_round(self, step: int) -> int:
        """Return the first step from `step` on that begins with evaluation where that is routine, else `step`."""
        return self._evaluation.next_step(step)

    def end_evaluation(self, step: int) -> None:
        """Take what passed since the step began for evaluation."""
        now_ns = perf_counter_ns()
        self._evaluation.add(self._regions_until(now_ns), step=step, step_start_ns=self.start_ns, now_ns=now_ns)

    def leave_out(self, paused_ns: int, *, of_evaluation: bool) -> None:
        """Take out what the recorder itself took in this step."""
        self.start_ns += paused_ns
        self._regions.leave_out(paused_ns)
        if of_evaluation:
            self._evaluation.leave_out(paused_ns)

    def _regions_until(self, now_ns: int) -> RegionTimes:
        held, self._held = self._held, None
        times = self._regions.split_step(now_ns)
        return times if held is None else summed(held[1], times)


class StepRecorder:
    """Takes in the steps of one process, and opens a run with the first. Off after the first failure."""

    def __init__(self, config: RecordConfig, *, on_trace_ready: Callable[[Any], Any] | None = None) -> None:
        self.config = config = replace(config, out=str(Path(config.out).absolute()))  # training may change folder
        self.on = True
        self.step = 0
        self.waits_on_host = False  # whether the training thread itself waits for other ranks
        self.regions = Regions(on_first=self.begin)
        self.samplers = Samplers()
        self.on_own_region: Callable[[], None] | None = None  # told before a region that the script marks itself
        self._edges_matter = False  # whether a sampler looks at the edges of regions
        self._created_ns = time.time_ns()
        self._begun = False
        self._times = StepTimes(self.regions)
        self._known = JobFacts()
        self._watched = WatchedSteps(
            config,
            known=self._known,
            regions=self.regions,
            samplers=self.samplers,
            begins_round=self._times.begins_round,
            on_trace_ready=on_trace_ready,
            on_tick=lambda: self._try(self._look_at_budget),
        )
        self._log: StepLog | None = None
        self._run: OpenRun | None = None
        self._opening = threading.Lock()  # two threads that train at once open one run

    @property
    def run_folder(self) -> Path | None:
        """Where this run is written; None until a step has ended and the ranks have agreed."""
        if self._run is None:
            return None
        self._run.wait_for_folder()
        return self._run.folder

    def begin(self) -> None:
        """Say that the first step begins now; the first region says so by itself."""
        if self._begun or not self.on:
            return
        self._begun = True
        self.samplers.tell("on_begin")
        self._times.begin()
        if self._watched.phase != BEFORE:
            self._try(self._before_first_step)

    def region_begin(self, name: str) -> None:
        """Enter a region that the script marks itself, on this thread."""
        if self.on_own_region is not None:
            self.on_own_region()
        self.enter(name)

    def region_end(self, name: str) -> None:
        """Leave the innermost region of that name on this thread."""
        if self.on_own_region is not None:
            self.on_own_region()
        self.leave(name)

    def enter(self, name: str, at_ns: int | None = None) -> None:
        """Enter a region on this thread, now or, by `perf_counter_ns`, in the past."""
        if self.on:
            self.regions.begin(name, at_ns)
            if self._edges_matter and threading.get_ident() == self.regions.training_thread:
                self.samplers.tell("on_region_begin", name)

    def leave(self, name: str, at_ns: int | None = None) -> None:
        """Leave it."""
        if self.on:
            if self._edges_matter and threading.get_ident() == self.regions.training_thread:
                self.samplers.tell("on_region_end", name)
            self.regions.end(name, at_ns)
            if self.regions.marker is not None or self._watched.after_window:
                self._look_at_budget()

    def step_end(self, *, at_ns: int | None = None) -> None:
        """Say that one optimizer step, with all its micro-batches, is complete.

        `at_ns` is when, by `perf_counter_ns`, where that is known only later; see `step_may_end`.
        """
        if not self.on:
            return
        try:
            self._step_end(at_ns)
        except Exception as e:  # noqa: BLE001 - training comes first
            self._fail(e)
        if self.step == self.config.trial_steps:
            end_trial(self)

    def step_may_end(self, at_ns: int) -> int:
        """Return this moment, `at_ns` by `perf_counter_ns`; `step_end(at_ns=...)` may say later that a step ended here.

        If so, regions up to here are that step's and later ones the next step's; if not, all are one step's.
        """
        return self._times.may_end(at_ns) if self.on else at_ns

    def steps_to_time(self, short_ns: int) -> int:
        """Return how many coming steps need nothing but their times; 0 where steps are not short."""
        if not self.on or self._log is None or self._edges_matter or not self._log.may_wait(self.step):
            return 0
        watched = self._watched
        if self._times.last_ns >= short_ns or self.regions.marker is not None or watched.after_window:
            return 0
        return watched.busy_step - self.step - 1

    @property
    def mark_step_end(self) -> Callable[[], dict[str, Any]]:
        """What returns the line of a step that ends now, to be given to `steps_passed`."""
        assert self._log is not None
        return self._log.mark_end

    def steps_passed(self, steps: list[PastStep]) -> None:
        """Say that steps ended: when by `perf_counter_ns`, their regions, and what `mark_step_end` returned then."""
        if self.on:
            self._try(lambda: self._steps_passed(steps))

    def step_begin(self) -> None:
        """Say that training begins again now: what passed since the last step ended was evaluation.

        It is a region of its own in the step that begins, with all that was loaded and computed in it.
        """
        if self.on:
            self._try(self._step_begin)

    def evaluation_goes_on(self) -> None:
        """Say that an evaluation is under way in which nothing was told of: it is not to be profiled."""
        if self.on:
            self._try(self._evaluation_goes_on)

    def note(self, **facts: Any) -> None:
        """Keep facts for run.json; the last value of a name wins. Objects are held weakly."""
        self._known.note(facts)

    def add_sampler(self, sampler: Any) -> None:
        """Let `sampler` see windows and steps; `samplers` says which methods it may have."""
        self.samplers.add(sampler)
        self._edges_matter = self.samplers.has("on_region_end")

    def groups_end(self) -> None:
        """Say that the process groups are about to go: what they tell is asked for now."""
        if self.on and self._run is not None:
            self._try(self._send_facts)

    def _look_at_budget(self) -> None:
        if self.on:
            self._watched.look_at_budget()

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - training comes first
            self._fail(e)

    def _fail(self, error: Exception) -> None:
        say(f"recording stopped, training goes on: {explain(error)}")
        with contextlib.suppress(Exception):
            self._stand_down()

    def _before_first_step(self) -> None:
        self._open_run()
        self._watched.before(self.step)
        self._times.start_ns = perf_counter_ns()

    def _open_run(self) -> None:
        with self._opening:
            if not self._watched.is_open:
                self._open_run_now()

    def _open_run_now(self) -> None:
        place = place_of_process()
        run = OpenRun(self.config, place, on_asked=self._watched.asked_for, where=self._where)
        self._run = run
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.waits_on_host = place.world_size > 1 and not cuda
        self.regions.nvtx = nvtx_functions() if self.config.nvtx and cuda else None
        self._log = StepLog(run.outbox.put_step, device_timer(shared=self.config.trial_steps is None))
        self._watched.open(run)
        introduce(run, created_ns=self._created_ns)

    def _step_begin(self) -> None:
        is_routine = self._times.is_routine(self.step)
        self._times.end_evaluation(self.step)
        if not is_routine:
            self._leave_evaluation_out(ended=True)

    def _evaluation_goes_on(self) -> None:
        if not self._times.is_routine(self.step):
            self._leave_evaluation_out(ended=False)

    def _leave_evaluation_out(self, *, ended: bool) -> None:
        since_ns = perf_counter_ns()
        self._watched.evaluation_began()
        self._times.leave_out(perf_counter_ns() - since_ns, of_evaluation=ended)

    def _step_end(self, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns()
        end_ns = now_ns if at_ns is None else at_ns
        if not self._watched.is_open:
            self._open_run()
        assert self._run is not None and self._log is not None
        if self._run.failed:
            self._stand_down()
            return
        profiled = self._watched.step_over()
        dur_ns, regions = self._times.end(now_ns, at_ns)
        line = {
            "step": self.step,
            "dur_ns": dur_ns,
            "profiled": profiled,
            "phase": self._watched.phase,
            "regions": regions,
            **self.samplers.of_step(self.step),
        }
        self._log.add({**line, "late_ns": perf_counter_ns() - end_ns})
        if not profiled and self.step >= FIRST_STEPS:
            self._watched.note_usual(self._times.last_ns)
        self.step += 1
        if self.step >= self._watched.busy_step and self._watched.before(self.step):
            self._log.restart()
            self._times.begin()  # the pause is in no step
        else:
            self._times.start_ns = end_ns

    def _steps_passed(self, steps: list[PastStep]) -> None:
        assert self._log is not None
        longest_ns = self._log.add_past(
            steps, first=self.step, start_ns=self._times.start_ns, phase=self._watched.phase
        )
        self._watched.note_usual(longest_ns)
        self.step += len(steps)
        self._times.start_ns = steps[-1][0]
        self.samplers.tell("on_steps_passed", len(steps))

    def _where(self) -> dict[str, Any]:
        return whereabouts(self.regions.training_thread, region=self.regions.innermost())

    def _send_facts(self) -> None:
        assert self._run is not None
        self._known.send(self._run)

    def _stand_down(self) -> None:
        self.on = False
        self._watched.abandon()

    def _close(self) -> None:
        self._watched.guard.remove()
        if self._run is None:
            return
        assert self._log is not None
        self._run.wait_for_folder(give_up=True)
        if self._run.failed:
            self._stand_down()
            self._run.finish()
            return
        self._watched.finish()
        self._log.flush()
        self._send_facts()
        hand_over_files(self._run, self.samplers, "on_close")
        self._run.finish()
