"""One training loop recorded from inside its process, by the same hooks that `stepscope record` puts in from outside.

    recording = LoopRecording(out="run", wait=8, active=5)      settings as of `stepscope.profile`
    recording.begin(optimizers=[optimizer])                     steps and regions are found from here on
    ...                                                         the loop, unchanged
    recording.end()                                             the run folder is complete

There is one recorder per process. Where a job was started by `stepscope record`, or is inside `stepscope.profile`,
that recorder goes on and this one only adds what it knows. Where the framework runs its own profiler, ours gives
way: steps and regions are logged, the window has no trace, and one line says so.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.hooks.install import Hooks, install
from stepscope.record.launch.inject_point import already_recorded
from stepscope.record.loop.steps import unit_from
from stepscope.record.profile import close_and_say, profile, region
from stepscope.record.session import Recorder, current


class LoopRecording:
    """Records what trains between `begin` and `end`, or inside a `with` block."""

    def __init__(self, **settings: Any) -> None:
        self.config: RecordConfig = profile(**settings).config
        self._on_trace_ready = settings.get("on_trace_ready")
        self._hooks: Hooks | None = None
        self._folder: Path | None = None

    def begin(self, *, optimizers: Iterable[Any] = (), **facts: Any) -> None:
        """Follow the loop from here on; `optimizers` are those made before, `facts` go to the rank's facts."""
        if self._hooks is not None:
            return
        if already_recorded():
            say("already recorded by `stepscope record` or stepscope.profile: those settings and steps hold")
        else:
            try:
                self._hooks = install(
                    lambda: Recorder.start(self.config, on_trace_ready=self._on_trace_ready),
                    unit_from(self.config.step_of),
                )
                for optimizer in optimizers:
                    self._hooks.loop.optimizers.is_made(optimizer)
                self._hooks.loop.start()
            except Exception as e:  # noqa: BLE001 - training comes first
                say(f"this training is not recorded: {explain(e)}")
        recorder = current()
        if recorder is not None:
            recorder.note(**facts)

    def end(self) -> None:
        """End the last step and complete the run folder. Safe to call twice, and without `begin`."""
        hooks, self._hooks = self._hooks, None
        if hooks is None:
            return
        hooks.finish()
        hooks.remove()
        recorder = hooks.loop.recorder
        if recorder is not None:
            self._folder = recorder.run_folder
            close_and_say(recorder)

    @property
    def hooks(self) -> Hooks | None:
        """What follows the loop; None before, after, and where somebody else records."""
        return self._hooks

    @property
    def run_folder(self) -> Path | None:
        """Where the run is written; None before the first step, and where nothing could be written."""
        recorder = current()
        return self._folder if self._folder is not None or recorder is None else recorder.run_folder

    def step(self) -> None:
        """Do nothing: steps end where the optimizer steps. It is here for loops written for torch's profiler."""

    def region(self, name: str) -> region:
        """Return a context manager that marks a named part of the step."""
        return region(name)

    def __enter__(self) -> "LoopRecording":
        self.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def missing(package: str, error: ImportError) -> ImportError:
    """Return the error of an integration whose framework is not there."""
    return ImportError(
        f"stepscope.integrations.{package.partition('.')[0]}: {package} cannot be imported: {error}; "
        f"run: pip install {package}"
    )
