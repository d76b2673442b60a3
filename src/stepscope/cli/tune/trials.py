"""The job, started again and again: each trial with one setting, timed for some steps, ended, and looked at."""

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from stepscope.cli.messages import is_quiet, print_stderr
from stepscope.cli.output import make_folder
from stepscope.cli.record import shown
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.record.config import RecordConfig
from stepscope.record.launch.bounded_run import BoundedRun
from stepscope.record.launch.launch import launch
from stepscope.tune.experiment import BASE, Candidate, Trial, trial_in


@dataclass(frozen=True)
class Told:
    """One trial, for the record."""

    name: str
    when: str
    trial: Trial
    wall_s: float
    log: str


class Trials:
    """Runs trials; call it with what to say of one and its setting, None for the unchanged job."""

    def __init__(self, command: Sequence[str], folder: Path, *, steps: int, warmup: int, limit_s: float) -> None:
        self.told: list[Told] = []
        self.steps, self.warmup = steps, warmup
        self.command, self._limit_s = list(command), limit_s
        self._folder = make_folder(str(folder / "trials"))

    def announce(self, settings: int, rounds: int) -> None:
        """Say what is to come."""
        self._say(
            f"{settings} settings in {rounds} rounds, {self.warmup + self.steps} steps per trial; "
            f"output in {shown(self._folder)}"
        )

    def __call__(self, when: str, candidate: Candidate | None) -> Trial:
        name = candidate.name if candidate else BASE
        began_s = time.monotonic()
        number = f"{len(self.told):03d}"
        trial = self._run(number, candidate)
        self.told.append(Told(name, when, trial, time.monotonic() - began_s, f"{self._folder.name}/{number}.log"))
        ended = f"{trial.step_ms:.2f} ms per step" if trial.step_ms is not None else trial.failed
        self._say(f"{when}, {name}: {ended}")
        good = [one for one in self.told if one.name == BASE and one.trial.failed is None]
        if candidate is None and not good:
            raise InputError(f"the unchanged job: {trial.failed}; its output is in {shown(self._log(number))}")
        return trial

    def _run(self, number: str, candidate: Candidate | None) -> Trial:
        run_id = uuid.uuid4().hex
        config = RecordConfig(
            out=str(self._folder / number),
            run_id=run_id,
            light=True,
            collectives=False,
            telemetry=False,
            settings=dict(candidate.settings) if candidate else {},
            trial_steps=self.warmup + self.steps,
        )
        environ = {"PYTHONHASHSEED": "0", **os.environ, **(candidate.environment if candidate else {})}
        runner = BoundedRun(self._log(number), limit_s=self._limit_s, run_id=run_id)
        launched = launch(self.command, config, environ=environ, run=runner)
        return trial_in(
            launched.folders[-1] if launched.folders else None,
            warmup=self.warmup,
            ended=_trouble(launched.exit_code, runner.timed_out, self._limit_s),
        )

    def _log(self, number: str) -> Path:
        return self._folder / f"{number}.log"

    def _say(self, line: str) -> None:
        if not is_quiet():
            print_stderr(f"stepscope tune: {line}")


def _trouble(exit_code: int, timed_out: bool, limit_s: float) -> str | None:
    if timed_out:
        return f"it took over {limit_s:.0f} s and was ended"
    if exit_code:
        return f"it ended with {f'signal {-exit_code}' if exit_code < 0 else f'exit code {exit_code}'}"
    return None
