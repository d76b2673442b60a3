"""The recorder of one process: regions and steps come in; step log, profiled window and facts go out.

Whoever finds the steps (hooks in an unmodified script, `stepscope.profile`, an integration) calls
`region_begin`, `region_end` and `step_end`; nothing else of the recorder is on the training path. Any failure
in here is one line on stderr, after which the recorder is off and training goes on.
"""

from typing import Any

from stepscope.record.config import RecordConfig
from stepscope.record.regions import Regions
from stepscope.record.undisturbed import explain, say

_current: "Recorder | None" = None


def current() -> "Recorder | None":
    """Return this process's recorder, or None."""
    return _current


class Recorder:
    """One per process. Off after the first failure, in forked children, and after `close()`."""

    def __init__(self, config: RecordConfig) -> None:
        self.config = config
        self.on = True
        self.step = 0
        self.regions = Regions()
        self.facts: dict[str, Any] = {}
        self.samplers: list[Any] = []

    @classmethod
    def start(cls, config: RecordConfig) -> "Recorder":
        """Return the recorder of this process, made now unless there is one already."""
        global _current
        if _current is None:
            _current = cls(config)
        return _current

    def region_begin(self, name: str) -> None:
        """Enter a named region on this thread."""
        if self.on:
            self.regions.begin(name)

    def region_end(self, name: str) -> None:
        """Leave the innermost region of that name on this thread."""
        if self.on:
            self.regions.end(name)

    def step_end(self) -> None:
        """Say that one optimizer step, with all its micro-batches, is complete."""
        if not self.on:
            return
        try:
            self._step_end()
        except Exception as e:  # noqa: BLE001 - training comes first
            self._fail(e)

    def note(self, **facts: Any) -> None:
        """Keep facts for run.json; the last value of a name wins."""
        self.facts.update(facts)

    def add_sampler(self, sampler: Any) -> None:
        """Let `sampler` see windows and steps; see `step_log` for its optional methods."""
        self.samplers.append(sampler)

    def close(self) -> None:
        """Finish: write what is left and end the helper process. Safe to call twice."""
        self.on = False

    def _step_end(self) -> None:
        self.step += 1

    def _fail(self, error: BaseException) -> None:
        self.on = False
        say(f"recording stopped, training goes on: {explain(error)}")
