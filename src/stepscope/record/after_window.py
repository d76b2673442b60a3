"""The steps after the last window with a separate profiler: one to count operators, one with frames.

    step     14      15                    16      17        18
             window  census, calls counted  frames  settling  unprofiled

Which ones is a function of the settings, hence equal on all ranks. A step in which evaluation began is tried again. A
job that ends before has neither, with a note in `run.json`. Where passes without gradients come every few steps, as
with a policy's answers, the step with frames is one that begins with them: it shows the whole loop.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import SOURCE_FOLDER, owners_file
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.groups import group_timeout_s
from stepscope.record.helper.handover import JobFacts
from stepscope.record.helper.open_run import OpenRun
from stepscope.record.loop.call_search import step_aside
from stepscope.record.owners.frame_step import CallCount, FrameStep, owners_of, write_owners
from stepscope.record.owners.loader_samples import SAMPLES, Line
from stepscope.record.window.budget import TypicalStep, max_window_events
from stepscope.record.window.guards import ProfilerGuard
from stepscope.record.window.schedule import census_step, frame_step
from stepscope.record.window.watched_step import StepCensus

_FLOPS, _OWNERS = "flops_per_step", "owners"
_NO_CENSUS = "the job ended before the step after the window, in which they would have been counted"
_NO_FRAMES = "the job ended before the step with Python frames, the second after the window"


class AfterWindow:
    """Begins and ends these steps, and hands on what they showed."""

    def __init__(
        self,
        config: RecordConfig,
        guard: ProfilerGuard,
        *,
        run: OpenRun,
        known: JobFacts,
        set_marker: Callable[[bool], None],
        begins_round: Callable[[int], int],
    ) -> None:
        self._config = config
        self._guard = guard
        self._run = run
        self._known = known
        self._set_marker, self._begins_round = set_marker, begins_round
        self._watched: StepCensus | FrameStep | None = None
        self._calls: CallCount | None = None
        self._tries = 3
        self._census_step = census_step(config)
        self._frame_step = frame_step(config)
        if self._census_step is not None:
            known.because(_FLOPS, _NO_CENSUS)
        if self._frame_step is not None:
            known.because(_OWNERS, _NO_FRAMES)
        else:
            SAMPLES.retire()

    @property
    def is_watching(self) -> bool:
        """Whether the current step is one of them."""
        return self._watched is not None or self._calls is not None

    def next_step(self, step: int) -> int | None:
        """Return the first step after `step` before which something is to be done, None where there is none."""
        if self.is_watching:
            return step + 1
        frame_step = self._frame_step
        planned = (self._census_step, frame_step, None if frame_step is None else frame_step - 1)
        return min((s for s in planned if s is not None and s > step), default=None)

    def count_flops_of(self, step: int) -> None:
        """Count the operators of this step, in a light recording after the first requested window."""
        if self._census_step is None and self._config.count_flops:
            self._census_step = step

    def begin(self, step: int, usual: TypicalStep) -> bool:
        """Begin to watch a step where it is one of them; return whether it is."""
        if self._frame_step is not None and step == self._frame_step - 1:
            self._frame_step = self._begins_round(self._frame_step)
        if self._frame_step is not None and step in (self._frame_step - 1, self._frame_step):
            step_aside()  # our own search for the loop's modules: no profile function of the user's
        if step == self._census_step:
            self._watched = StepCensus(self._guard, self._config, usual)
            self._watched.begin()
        elif step == self._frame_step:
            self._watched = FrameStep(
                self._guard, self._config, usual, step=step, on_cut_short=lambda: self._set_marker(False)
            )
            self._watched.begin()
            self._set_marker(self._watched.is_on)
        if self._frame_step is not None and step == self._frame_step - 1:
            SAMPLES.watch()  # workers are ahead of training: what they do now is for the steps to come
            limit = max_window_events(self._config, group_timeout_s=group_timeout_s())
            self._calls = CallCount(limit)
            self._calls.begin()  # last: what we do ourselves is not counted
        return self.is_watching

    def look_at_budget(self) -> None:
        """Stop where a limit was met; called when a region ends."""
        if self._watched is not None:
            self._watched.look_at_budget()

    def evaluation_began(self) -> None:
        """Stop: what follows is no training step."""
        if self._watched is not None:
            self._watched.stop("evaluation began inside the step that was to be watched")
        if self._calls is not None and self._frame_step is not None:
            self._frame_step += 1  # counted again: evaluation is no training step

    def step_over(self) -> None:
        """End what watches the step from inside."""
        if self._calls is not None:
            self._calls.end()
        if isinstance(self._watched, FrameStep):
            self._watched.end_mark()

    def end(self, step: int) -> bool:
        """End watching before `step`, and hand on what was seen; return whether anything was watched."""
        was_watching = self.is_watching
        watched, self._watched = self._watched, None
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.end()
            if calls.why_not is not None:
                self._frame_step = None
                SAMPLES.retire()
                self._known.because(_OWNERS, calls.why_not)
        if isinstance(watched, StepCensus):
            self._end_census(watched, step)
        elif watched is not None:
            self._set_marker(False)
            self._end_frames(watched, step)
            if self._frame_step is None or self._frame_step < step:
                SAMPLES.retire()
        return was_watching

    def abandon(self) -> None:
        """End whatever runs: nothing can be written anyway."""
        watched, self._watched = self._watched, None
        calls, self._calls = self._calls, None
        SAMPLES.retire()
        if calls is not None:
            calls.end()
        if watched is not None:
            watched.end()

    def _end_census(self, census: StepCensus, step: int) -> None:
        found = census.counts()
        if found is not None:
            self._run.outbox.put({"do": "facts", "flops": found, "window_complete": self._config.light})
            self._known.no_longer(_FLOPS)
            return
        self._known.because(_FLOPS, str(census.why_not))
        if census.was_stopped and self._tries > 0:
            self._tries -= 1
            self._census_step = step + 1
            if self._frame_step is not None:
                self._frame_step = step + 2

    def _end_frames(self, frames: FrameStep, step: int) -> None:
        samples = SAMPLES.lines()
        try:
            results = frames.end()
            if results is None:
                self._known.because(_OWNERS, str(frames.why_not))
                if frames.was_stopped and self._tries > 0:
                    self._tries -= 1
                    self._frame_step = step + 1
                return
            self._hand_over(results, frames, samples)
            self._known.no_longer(_OWNERS)
        except Exception as e:  # noqa: BLE001 - training comes first
            self._known.because(_OWNERS, explain(e))
            say(f"no lines of this step: {explain(e)}")

    def _hand_over(self, results: Any, frames: FrameStep, samples: dict[Line, int]) -> None:
        rank = self._run.place.rank
        model = self._known.noted("model")
        owners, user_files = owners_of(
            results,
            step=frames.step,
            rank=rank,
            model=model if isinstance(model, torch.nn.Module) else None,
            max_events=2 * self._config.max_events,  # operators are not among the calls that were counted
            loader=samples,
            lines=frames.lines,
        )
        folder = Path(tempfile.mkdtemp(prefix="owners-", dir=self._run.scratch))
        plain, source = write_owners(owners, user_files, folder, with_source=self._config.source and rank == 0)
        name = owners_file(rank)
        self._run.outbox.put({"do": "trace", "plain": str(plain), "name": name, "about": {"kind": "owners"}})
        for file, path in source.items():
            self._run.outbox.put(
                {"do": "file", "plain": str(path), "name": f"{SOURCE_FOLDER}/{file}", "about": {"kind": "source"}}
            )
