"""The job recorded once, and ended after its profiled steps: its findings, and what is known of it."""

import os
import platform
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from stepscope.cli.messages import is_quiet, print_stderr, warn
from stepscope.cli.record import shown, warnings_before
from stepscope.dataclass import dataclass
from stepscope.errors import InputError, StepscopeError
from stepscope.record.config import RecordConfig
from stepscope.record.launch.bounded_run import BoundedRun
from stepscope.record.launch.launch import launch
from stepscope.tune.experiment import MIN_STEPS, Job, job_in, trial_in

# up to the last profiled step, the two that are watched after it, and a few
_STEPS = 25
_LIMIT_S = 1800.0
_TRIAL_S = 4.0
_MIN_STEPS, _MAX_STEPS = 20, 300
_MIN_LIMIT_S = 60.0


@dataclass(frozen=True)
class NamedFinding:
    """A finding of the first report."""

    id: str
    title: str
    saving_pct: float


@dataclass(frozen=True)
class FirstRun:
    """What the first run tells."""

    folder: Path
    job: Job
    findings: tuple[NamedFinding, ...]
    verdict: str | None
    step_ms: float
    wall_s: float

    @property
    def steps_per_trial(self) -> int:
        """Return how many steps take about four seconds, within bounds."""
        return min(_MAX_STEPS, max(_MIN_STEPS, round(1000 * _TRIAL_S / self.step_ms)))

    @property
    def trial_limit_s(self) -> float:
        """Return after how long a trial is given up: settings that hang are not waited for."""
        return max(_MIN_LIMIT_S, 5 * self.wall_s)


def first_run(command: Sequence[str], folder: Path) -> FirstRun:
    """Return what the first run of a job tells; an `InputError` where it fails or takes no steps."""
    config = RecordConfig(out=str(folder / "first"), trial_steps=_STEPS, run_id=uuid.uuid4().hex)
    for line in warnings_before(list(command), config):
        print_stderr(f"stepscope: {line}")
    log = folder / "first.log"
    if not is_quiet():
        print_stderr(f"stepscope tune: first run, its output goes to {shown(log)}")
    began_s = time.monotonic()
    runner = BoundedRun(log, limit_s=_LIMIT_S, run_id=str(config.run_id))
    launched = launch(command, config, run=runner)
    wall_s = time.monotonic() - began_s
    if launched.exit_code or not launched.folders:
        how = f"ended with exit code {launched.exit_code}" if launched.exit_code else "recorded no step"
        raise InputError(f"the job {how}, unchanged; its output is in {shown(log)}")
    where = launched.folders[-1]
    measured = trial_in(where, warmup=2)
    if measured.step_ms is None:
        raise InputError(f"the job cannot be timed: {measured.failed}; it has to take over {2 + MIN_STEPS} steps")
    findings, verdict = _report(where)
    return FirstRun(where, _job(where), findings, verdict, measured.step_ms, wall_s)


def _job(folder: Path) -> Job:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return job_in(folder, cores=cores, mimalloc=platform.machine() not in ("x86_64", "AMD64"))


def _report(folder: Path) -> tuple[tuple[NamedFinding, ...], str | None]:
    try:
        from stepscope.analyze.account import account_of
        from stepscope.analyze.sampled import load_run
        from stepscope.diagnose.findings import diagnose
        from stepscope.diagnose.verdict import conclude

        account = account_of(load_run([str(folder)]))
        found = diagnose(account)
    except (StepscopeError, ImportError) as error:  # a training image may lack what the analysis needs
        warn(f"no findings to go by: {error}")
        return (), None
    return tuple(NamedFinding(f.id, f.title, f.saving_pct) for f in found.worth), conclude(account, found).verdict
