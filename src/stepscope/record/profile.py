"""`stepscope.profile` and `stepscope.region`: recording with three lines in the training script.

    with stepscope.profile(out="run", wait=8, warmup=2, active=5) as recording:
        for batch in loader:
            with recording.region("forward_pass"):
                loss = model(batch)
            ...
            recording.step()

In a job that `stepscope record` started, the settings of the command line hold, its folder too. Where training began
before the block, steps are found by the hooks; else `step()` ends them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from stepscope.errors import UsageError
from stepscope.record.config import RecordConfig, default_out, ranks_from
from stepscope.record.failsafe import say
from stepscope.record.launch.inject_point import followed_from_outside
from stepscope.record.session import Recorder, current
from stepscope.record.window.schedule import why_no_window

# Names that readers of torch's profiler and of common guides know, as settings of `stepscope.profile`.
#
# schedule=torch.profiler.schedule(wait=1, warmup=1, active=3)     wait, warmup, active, repeat
# output_dir, trace_dir, log_dir, output_trace_dir                 out
# rank0_only=True                                                  ranks=0
# skip_first=5                                                     five more steps of wait

_MAX_STEPS = 100_000
_SAVE = "RECORD_AND_SAVE"


def _usual_settings(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("output_dir", "trace_dir", "log_dir", "output_trace_dir"):
        if (folder := given.pop(name, None)) is not None:
            found["out"] = str(folder)
    if (schedule := given.pop("schedule", None)) is not None:
        found |= window_of(schedule)
    if given.pop("rank0_only", False):
        found["ranks"] = 0
    return found


def window_of(schedule: Callable[[int], Any]) -> dict[str, int]:
    """Return the window of a schedule of torch's profiler, by calling it step by step.

    An endless one is one window. A `UsageError` where it never records.
    """
    actions: list[str] = []
    while not actions or actions[-1] != _SAVE:
        if len(actions) == _MAX_STEPS:
            raise UsageError(
                f"schedule: it records nothing in its first {_MAX_STEPS:,} steps; give wait, warmup and active"
            )
        actions.append(_name(schedule(len(actions))))
    wait, warmup, length = actions.count("NONE"), actions.count("WARMUP"), len(actions)
    ends = [step for step in range(length, 20 * length) if _name(schedule(step)) == _SAVE]
    endless = len(ends) >= 2 and ends[-1] > 20 * length - 2 * (ends[1] - ends[0])
    repeat = 1 if endless else 1 + len(ends)
    return {"wait": wait, "warmup": warmup, "active": length - wait - warmup, "repeat": repeat}


def _name(action: Any) -> str:
    return str(getattr(action, "name", action))


class region:
    """A named part of the step: in the step log, in the trace (`record_function`) and as an NVTX range.

    Costs about a microsecond outside the window and nothing without a recorder. Inside compiled code it is left out.
    """

    __slots__ = ("_name", "_recorder")

    def __init__(self, name: str) -> None:
        self._name = name
        self._recorder: Recorder | None = None

    def __enter__(self) -> None:
        if not torch.compiler.is_compiling():
            self._recorder = current()
            if self._recorder is not None:
                self._recorder.region_begin(self._name)

    def __exit__(self, *exc: object) -> None:
        if not torch.compiler.is_compiling() and self._recorder is not None:
            self._recorder.region_end(self._name)


class profile:
    """Records the steps inside a `with` block; call `step()` after every optimizer step.

    The window is (wait + warmup + active) * repeat steps; all other steps are timed without the profiler.
    `out` is the run folder (default: TORCH_TRACE_DIR, else ./stepscope-run); a folder that holds a run already is
    never overwritten, a sibling is made. `ranks` is "all", "0", "0,3" or a list. `on_trace_ready` replaces our own
    export and is called with the torch profiler. `light` records step and region times only. The usual names of
    torch's profiler (`schedule`) and of guides (`output_dir`, `rank0_only`, ...) are taken too: see `usual_names`.
    """

    def __init__(
        self,
        *,
        out: str | Path | None = None,
        wait: int = 8,
        warmup: int = 2,
        active: int = 5,
        repeat: int = 1,
        activities: Iterable[Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        ranks: str | int | list[int] | None = "all",
        on_trace_ready: Callable[[Any], Any] | None = None,
        max_events: int = RecordConfig.max_events,
        max_seconds: float = RecordConfig.max_seconds,
        light: bool = False,
        **settings: Any,
    ) -> None:
        self._on_trace_ready = on_trace_ready
        self._recorder: Recorder | None = None
        self._steps_here = True
        self._folder: Path | None = None
        usual = _usual_settings(settings)
        ranks = usual.pop("ranks", ranks)
        self.config = RecordConfig(
            out=usual.pop("out", None) or (str(out) if out is not None else default_out()),
            wait=usual.pop("wait", wait),
            warmup=usual.pop("warmup", warmup),
            active=usual.pop("active", active),
            repeat=usual.pop("repeat", repeat),
            activities=None if activities is None else tuple(_name(a).lower() for a in activities),
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            ranks=ranks_from(ranks),
            max_events=max_events,
            max_seconds=max_seconds,
            light=light,
            **settings,
        )

    def __enter__(self) -> "profile":
        self._steps_here = current() is None
        outside = RecordConfig.from_env() if followed_from_outside() else None
        if outside is not None or not self._steps_here:
            say("stepscope.profile inside a recorded job: the settings of the command line hold")
        self._recorder = Recorder.start(outside or self.config, on_trace_ready=self._on_trace_ready)
        self._recorder.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._recorder is not None and self._steps_here:
            self._folder = self._recorder.run_folder
            close_and_say(self._recorder)

    def step(self) -> None:
        """Say that one optimizer step, with all its micro-batches, is complete."""
        if self._recorder is not None and self._steps_here:
            self._recorder.step_end()

    def region(self, name: str) -> region:
        """Return a context manager that marks a named part of the step."""
        return region(name)

    def note(self, **facts: Any) -> None:
        """Keep facts for run.json: model=..., optimizer=..., tokens_per_step=..., samples_per_step=..."""
        if self._recorder is not None:
            self._recorder.note(**facts)

    @property
    def run_folder(self) -> Path | None:
        """Where the run is written; None before the first step, and where nothing could be written."""
        if self._folder is not None or self._recorder is None:
            return self._folder
        return self._recorder.run_folder


def close_and_say(recorder: Recorder) -> None:
    """Complete the run; say so where the job was too short for a profiled window, and which window would do."""
    failed = not recorder.on or (recorder.step > 0 and recorder.run_folder is None)  # which was said
    short = None if failed else why_no_window(recorder.step, recorder.config)
    recorder.close()
    if short is not None and not followed_from_outside():  # else the launcher says it, in its own options
        say(short)
