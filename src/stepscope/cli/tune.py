"""Try fixes that need no change of code on a job, and report which ones help.

examples:
  stepscope tune -- torchrun --nproc-per-node=2 train.py
  stepscope tune --only loader --rounds 3 -- python train.py
  stepscope tune --allow-inexact --out tuned -- python train.py
  stepscope tune --apply tuned/tune.json -- python train.py

A first run is recorded and its findings say what to try first. Each setting (loader workers, pinning and prefetch,
DDP's buckets, a fused optimizer, allocator, NCCL, threads) is then put into the job from outside and timed for some
steps, in turn with the unchanged job. Every trial is your job, started anew and ended after its last timed step.
Recommended settings keep the losses and have a gain with an interval above 0, corrected for the number of settings.
"""

import argparse
import os
import platform
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stepscope.cli.record import shown, warnings_before
from stepscope.cli.run_arguments import (
    above_zero,
    at_least_one,
    check_outputs,
    is_quiet,
    make_folder,
    print_line,
    print_stderr,
    refuse_used_folder,
    say_with_answer,
    take_command,
    warn,
    write_json,
    write_output,
)
from stepscope.contract.live import SETTINGS, VARIABLES
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.record.config import RecordConfig
from stepscope.records import dataclass
from stepscope.side_file import read_side_json

if TYPE_CHECKING:
    from stepscope.tune.experiment import Candidate, Choice, Experiment, Job, Trial

RESULT, TEXT = "tune.json", "tune.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "tune")
    parser.usage = "stepscope tune [options] -- COMMAND ..."
    parser.add_argument("--out", metavar="DIR", default="stepscope-tune", help="folder for all of it (stepscope-tune)")
    parser.add_argument("--rounds", type=at_least_one, default=5, metavar="N", help="trials of each setting (5)")
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="timed steps of a trial (about 4 s, 20 to 300)")
    parser.add_argument("--warmup", type=at_least_one, default=5, metavar="N", help="steps before those (5)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only settings with this prefix; repeatable")
    parser.add_argument("--most", type=at_least_one, default=8, metavar="N", help="settings to try at most (8)")
    parser.add_argument("--allow-inexact", action="store_true", help="try settings that change results too: TF32")
    parser.add_argument("--compile", action="store_true", help="try a compiled model too")
    parser.add_argument("--time-limit", type=above_zero, metavar="S", help="of a trial, in seconds (5 times the first)")
    parser.add_argument("--apply", metavar="FILE", help="try nothing: run the command with the settings chosen in FILE")
    parser.add_argument("--json", metavar="PATH", help="write the result as JSON too; - for standard output")
    parser.add_argument("--force", action="store_true", help="use a folder that is not empty, overwrite outputs")


def run(args: argparse.Namespace) -> int:
    """Return 0, also if no setting helps, 3 if it was stopped; with --apply the job's own exit code."""
    from stepscope.report.text.tune import tune_lines
    from stepscope.tune.experiment import MIN_ROUNDS, candidates, experiment

    if not args.command:
        raise UsageError("the job's command is missing; give it after --, e.g. stepscope tune -- torchrun train.py")
    if args.apply:
        return _apply(args.apply, args.command)
    if args.rounds < MIN_ROUNDS:
        raise UsageError(f"--rounds {args.rounds}: an interval needs at least {MIN_ROUNDS}")
    check_outputs(args.json, force=args.force)
    refuse_used_folder(args.out, force=args.force)
    folder = make_folder(args.out)
    first = first_run(args.command, folder)
    choice = candidates(
        first.job,
        [finding["id"] for finding in first.findings],
        inexact=args.allow_inexact,
        compiled=args.compile,
        only=args.only or (),
        most=args.most,
    )
    trials = Trials(
        args.command,
        folder,
        steps=args.steps or min(300, max(20, round(4000 / first.step_ms))),
        warmup=args.warmup,
        limit_s=args.time_limit or max(60.0, 5 * first.wall_s),  # settings that hang are not waited for
    )
    trials.announce(len(choice.tried), args.rounds)
    found = experiment(choice.tried, trials, rounds=args.rounds)
    if found.stopped and not found.base:
        raise KeyboardInterrupt
    result = folder / RESULT
    document = _document(found, choice, first, trials, rounds=args.rounds, result=shown(result))
    lines = tune_lines(document)
    write_json(str(result), document, force=args.force)
    write_output(str(folder / TEXT), "\n".join(lines) + "\n", force=args.force)
    write_json(args.json, document, force=args.force)
    if args.json != "-":
        for line in lines:
            print_line(line)
    say_with_answer(f"stepscope tune: written to {shown(result)} and {TEXT}")
    return 3 if found.stopped else 0


@dataclass(frozen=True)
class FirstRun:
    """Findings and facts of the job, recorded once."""

    folder: Path
    job: "Job"
    findings: list[dict[str, Any]]
    verdict: str | None
    step_ms: float
    wall_s: float


def first_run(command: Sequence[str], folder: Path) -> FirstRun:
    """Return the first run of a job, ended after its profiled steps; an `InputError` if it fails or takes no steps."""
    from stepscope.record.launch.launch import BoundedRun, launch
    from stepscope.tune.experiment import MIN_STEPS, trial_in

    # up to the last profiled step, the two that are watched after it, and a few
    config = RecordConfig(out=str(folder / "first"), trial_steps=25, run_id=uuid.uuid4().hex)
    for line in warnings_before(list(command), config):
        print_stderr(f"stepscope: {line}")
    log = folder / "first.log"
    _say(f"first run, output in {shown(log)}")
    began_s = time.monotonic()
    launched = launch(command, config, run=BoundedRun(log, limit_s=1800.0, run_id=str(config.run_id)))
    wall_s = time.monotonic() - began_s
    if launched.exit_code or not launched.folders:
        how = f"ended with exit code {launched.exit_code}" if launched.exit_code else "recorded no step"
        raise InputError(f"the job {how}, unchanged; its output is in {shown(log)}")
    where = launched.folders[-1]
    measured = trial_in(where, warmup=2)
    if measured.step_ms is None:
        raise InputError(f"the job cannot be timed: {measured.failed}; it has to take over {2 + MIN_STEPS} steps")
    findings: list[dict[str, Any]] = []
    verdict = None
    try:
        from stepscope.analyze.account import account_of
        from stepscope.analyze.sampled import load_run
        from stepscope.diagnose.findings import conclude, diagnose

        account = account_of(load_run([str(where)]))
        diagnosis = diagnose(account)
        findings = [{"id": f.id, "title": f.title, "saving_pct": f.saving_pct} for f in diagnosis.worth]
        verdict = conclude(account, diagnosis).verdict
    except (StepscopeError, ImportError) as error:  # a training image may lack what the analysis needs
        warn(f"no findings to go by: {error}")
    return FirstRun(where, _job(where), findings, verdict, measured.step_ms, wall_s)


def _job(folder: Path) -> "Job":
    from stepscope.tune.experiment import job_in

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return job_in(folder, cores=cores, mimalloc=platform.machine() not in ("x86_64", "AMD64"))


def _say(line: str) -> None:
    if not is_quiet():
        print_stderr(f"stepscope tune: {line}")


class Trials:
    """Runs trials; called with the occasion of one and its setting, None for the unchanged job."""

    def __init__(self, command: Sequence[str], folder: Path, *, steps: int, warmup: int, limit_s: float) -> None:
        self.records: list[dict[str, Any]] = []
        self.steps, self.warmup = steps, warmup
        self.command, self._limit_s = list(command), limit_s
        self._folder = make_folder(str(folder / "trials"))

    def announce(self, settings: int, rounds: int) -> None:
        """Report how many trials follow."""
        steps = f"{self.warmup + self.steps} steps per trial"
        _say(f"{settings} settings in {rounds} rounds, {steps}; output in {shown(self._folder)}")

    def __call__(self, when: str, candidate: "Candidate | None") -> "Trial":
        from stepscope.tune.experiment import BASE

        name = candidate.name if candidate else BASE
        began_s = time.monotonic()
        log = self._folder / f"{len(self.records):03d}.log"
        trial = self._run(log, candidate)
        record = {
            "name": name,
            "unchanged": name == BASE,
            "when": when,
            "step_ms": trial.step_ms,
            "steps": trial.steps,
            "first_loss": trial.losses[0] if trial.losses else None,
            "last_loss": trial.losses[-1] if trial.losses else None,
            "wall_s": time.monotonic() - began_s,
            "failed": trial.failed,
            "log": f"{self._folder.name}/{log.name}",
        }
        self.records.append(record)
        _say(f"{when}, {name}: {f'{trial.step_ms:.2f} ms per step' if trial.step_ms is not None else trial.failed}")
        if candidate is None and all(one["failed"] for one in self.records if one["unchanged"]):
            raise InputError(f"the unchanged job: {trial.failed}; its output is in {shown(log)}")
        return trial

    def _run(self, log: Path, candidate: "Candidate | None") -> "Trial":
        from stepscope.tune.experiment import trial_in

        folder, ended = run_trial(
            self.command,
            log,
            steps=self.warmup + self.steps,
            limit_s=self._limit_s,
            environment=candidate.environment if candidate else {},
            settings=dict(candidate.settings) if candidate else {},
        )
        return trial_in(folder, warmup=self.warmup, ended=ended)


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


def _document(
    found: "Experiment", choice: "Choice", first: FirstRun, trials: Trials, *, rounds: int, result: str
) -> dict[str, Any]:
    from stepscope.tune.experiment import document

    keep = found.keep
    command = redacted(trials.command)
    base = [t.step_ms for t in found.base if t.step_ms is not None]
    to_keep = unchanged = None
    if keep:
        variables = (f"{name}={shlex.quote(value)}" for name, value in keep.candidate.environment.items())
        to_keep = " ".join([*variables, shlex.join(command)])
        if keep.candidate.settings:
            unchanged = f"stepscope tune --apply {shlex.quote(result)} -- {shlex.join(command)}"
    return {
        "schema": SCHEMA,
        "command": command,
        "first_report": {"folder": str(first.folder), "verdict": first.verdict, "findings": first.findings},
        "rounds": rounds,
        "stopped": found.stopped,
        "warmup_steps": trials.warmup,
        "timed_steps": trials.steps,
        "tried": len(found.settings),
        "wall_s": sum(one["wall_s"] for one in trials.records),
        "unchanged_step_ms": fmean(base) if base else None,
        **document(keep, [*found.settings, *([found.combined] if found.combined else [])]),
        "command_to_keep": to_keep,
        "command_unchanged_script": unchanged,
        "not_tried": [{"name": name, "why": why} for name, why in choice.left_out],
        "trials": trials.records,
    }


def _apply(path: str, command: Sequence[str]) -> int:
    """Return the exit code of a command run with the settings of a `tune.json`; nothing of it is recorded."""
    from stepscope.record.launch.launch import launch

    try:
        found, _ = read_side_json(Path(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"--apply {path}: {why}; give the tune.json of an earlier `stepscope tune`") from error
    keep = found.get("keep", 0) if isinstance(found, dict) else 0
    if keep is None:
        keep = {}
    if not isinstance(keep, dict):
        raise InputError(f"--apply {path}: it is no result of `stepscope tune`; give its tune.json")
    settings, environment = (
        value if isinstance(value := keep.get(name), dict) else {} for name in ("settings", "environment")
    )
    config = RecordConfig(
        settings={k: v for k, v in settings.items() if k in SETTINGS and isinstance(v, int) and 0 <= v <= 1_000_000},
        only_set=True,
    )
    variables = {k: v for k, v in environment.items() if k in VARIABLES and isinstance(v, str)}
    code = launch(command, config, environ={**os.environ, **variables}).exit_code
    return code if code >= 0 else 128 - code
