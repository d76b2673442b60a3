"""Trials of a job: started, timed, recorded, and ended after their last step."""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stepscope.cli.outputs import is_quiet, print_stderr
from stepscope.cli.record import shown
from stepscope.errors import InputError
from stepscope.lab.experiment import Trial
from stepscope.record.config import RecordConfig

# without --steps: about this long a trial
_TIMED_MS = 4000
_LEAST_STEPS, _MOST_STEPS = 20, 300
# without --time-limit: at least, and so many times the first
_LIMIT_S, _TIMES_FIRST = 60.0, 5


class JobTrials:
    """Runs trials of one job or of its versions, and keeps a record of each."""

    def __init__(self, command: str, folder: Path, *, steps: int | None, limit_s: float | None) -> None:
        self.records: list[dict[str, Any]] = []
        self.steps = steps
        self.limit_s = limit_s
        self.folder = folder
        self._command, self._given_steps, self._given_limit_s = command, steps, limit_s

    def size(self, step_ms: float, wall_s: float) -> None:
        """Choose steps and time limit, where they are not given, by a first run."""
        self.steps = self._given_steps or min(_MOST_STEPS, max(_LEAST_STEPS, round(_TIMED_MS / step_ms)))
        self.limit_s = self._given_limit_s or max(_LIMIT_S, _TIMES_FIRST * wall_s)  # those that hang are not waited for

    @property
    def ended(self) -> list[dict[str, Any]]:
        """Return the records of all trials but one that Ctrl-C ended."""
        return [record for record in self.records if record["wall_s"] is not None]

    def say(self, line: str) -> None:
        """Show progress."""
        if not is_quiet():
            print_stderr(f"stepscope {self._command}: {line}")

    def record(self, when: str, name: str, log: str) -> dict[str, Any]:
        """Return a new record."""
        self.records.append({"when": when, "name": name, "log": log, "failed": None, "step_ms": None, "wall_s": None})
        return self.records[-1]

    def start(
        self, record: dict[str, Any], command: Sequence[str], steps: int, **options: Any
    ) -> tuple[Path | None, str | None]:
        """Return the run folder of a trial, and why it did not end as it should."""
        began_s = time.monotonic()
        log = self.folder / record["log"]
        found = run_trial(command, log, steps=steps, limit_s=self.limit_s or 1800.0, **options)
        record |= {"failed": found[1], "wall_s": time.monotonic() - began_s}
        return found

    def note(self, record: dict[str, Any], trial: Trial, **more: Any) -> Trial:
        """Keep what a trial left, and show its step time."""
        record |= {"failed": trial.failed, "step_ms": [round(float(ms), 6) for ms in trial.steps[0]], **more}
        step = f"{trial.step_ms:.2f} ms per step" if trial.step_ms is not None else str(trial.failed)
        self.say(f"{record['when']}, {record['name']}: {step}")
        return trial

    def failure(self, record: Mapping[str, Any]) -> InputError:
        """Return the error of a trial that has to succeed."""
        return InputError(
            f"{record['name']}: {record['failed']}; its output is in {shown(self.folder / record['log'])}"
        )


def run_trial(
    command: Sequence[str],
    log: Path,
    *,
    steps: int,
    limit_s: float,
    folder: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> tuple[Path | None, str | None]:
    """Return the run folder of a job that was ended after these steps, and why it did not end as it should.

    `options` are those of `RecordConfig`; by default only the step log is recorded.
    """
    from stepscope.record.launch.launch import BoundedRun, launch

    run_id = uuid.uuid4().hex
    given = {"light": True, **options}
    if given["light"]:
        given |= {"collectives": False, "telemetry": False, "samples": False}
    config = RecordConfig(out=str(log.with_suffix("")), run_id=run_id, trial_steps=steps, **given)
    runner = BoundedRun(log, limit_s=limit_s, run_id=run_id, folder=folder)
    launched = launch(command, config, environ={"PYTHONHASHSEED": "0", **os.environ, **environment}, run=runner)
    code, ended = launched.exit_code, None
    if runner.timed_out:
        ended = f"it took over {limit_s:.0f} s and was ended"
    elif code:
        ended = f"it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
    return launched.folders[-1] if launched.folders else None, ended
