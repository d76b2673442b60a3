"""Trials of `stepscope tune`: the first run, settings in turn with the unchanged job, and what they gave."""

import argparse
import os
import platform
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from stepscope.cli.outputs import (
    check_outputs,
    is_quiet,
    make_folder,
    print_line,
    print_stderr,
    refuse_used_folder,
    say_with_answer,
    show,
    warn,
    write_json,
    write_output,
)
from stepscope.cli.record import shown, warnings_before
from stepscope.contract.live import SETTINGS, VARIABLES
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import SCHEMA, TUNE_JSON
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.lab.cli.trials import JobTrials
from stepscope.lab.experiment import MIN_ROUNDS, Trial, trial_in
from stepscope.lab.tune import (
    BASE,
    MIN_STEPS,
    Candidate,
    Choice,
    Job,
    candidates,
    job_in,
    tune,
)
from stepscope.record.config import RecordConfig
from stepscope.records import Row
from stepscope.side_file import read_side_json

TEXT = "tune.txt"


def run(args: argparse.Namespace) -> int:
    """Return 0, also if no setting helps, 3 if it was stopped; with --apply the job's own exit code."""
    from stepscope.lab.report.trials import commands_of, tune_sheet
    from stepscope.report.sheet_text import sheet_text

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
    trials = Trials(args.command, folder, warmup=args.warmup, steps=args.steps, limit_s=args.time_limit)
    trials.size(first.step_ms, first.wall_s)
    trials.say(
        f"{len(choice.tried)} settings in {args.rounds} rounds, {trials.warmup + (trials.steps or 0)} steps per trial; "
        f"output in {shown(folder / 'trials')}"
    )
    found = tune(choice.tried, trials, rounds=args.rounds)
    result = folder / TUNE_JSON
    document = _document(found, choice, first, trials, rounds=args.rounds, result=shown(result))
    sheet = tune_sheet(document)
    write_json(str(result), document, force=args.force)
    write_output(str(folder / TEXT), sheet_text(sheet, verbose=True), force=args.force)
    show(args, document, lambda: sheet)
    for line in commands_of(document) if args.json != "-" else ():
        print_line(line)
    say_with_answer(f"stepscope tune: written to {shown(result)} and {TEXT}")
    return 3 if found["stopped"] else 0


def first_run(command: Sequence[str], folder: Path) -> Row:
    """Return the first run of a job, ended after its profiled steps; an `InputError` if it fails or takes no steps."""
    from stepscope.record.launch.launch import BoundedRun, launch

    # up to the last profiled step, the two that are watched after it, and a few
    config = RecordConfig(out=str(folder / "first"), trial_steps=25, run_id=uuid.uuid4().hex)
    for line in warnings_before(list(command), config):
        print_stderr(f"stepscope: {line}")
    log = folder / "first.log"
    if not is_quiet():
        print_stderr(f"stepscope tune: first run, output in {shown(log)}")
    began_s = time.monotonic()
    launched = launch(command, config, run=BoundedRun(log, limit_s=1800.0, run_id=str(config.run_id)))
    wall_s = time.monotonic() - began_s
    if launched.exit_code or not launched.folders:
        how = f"ended with exit code {launched.exit_code}" if launched.exit_code else "recorded no step"
        raise InputError(f"the job {how}, unchanged; its output is in {shown(log)}")
    where = launched.folders[-1]
    measured = trial_in(where, warmup=2, least=MIN_STEPS)
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
    said = Row(findings=findings, verdict=verdict, step_ms=measured.step_ms, wall_s=wall_s)
    return Row(said, folder=where, job=_job(where))


def _job(folder: Path) -> Job:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return job_in(folder, cores=cores, mimalloc=platform.machine() not in ("x86_64", "AMD64"))


class Trials(JobTrials):
    """Runs trials; called with the occasion of one and its setting, None for the unchanged job."""

    def __init__(
        self, command: Sequence[str], folder: Path, *, warmup: int, steps: int | None, limit_s: float | None
    ) -> None:
        super().__init__("tune", folder, steps=steps, limit_s=limit_s)
        self.command, self.warmup = list(command), warmup
        make_folder(str(folder / "trials"))

    def __call__(self, when: str, candidate: Candidate | None) -> Trial:
        record = self.record(when, candidate.name if candidate else BASE, f"trials/{len(self.records):03d}.log")
        folder, ended = self.start(
            record,
            self.command,
            self.warmup + (self.steps or 0),
            environment=candidate.environment if candidate else {},
            settings=dict(candidate.settings) if candidate else {},
        )
        trial = trial_in(folder, warmup=self.warmup, ended=ended, least=MIN_STEPS)
        losses = {"first_loss": trial.losses[0], "last_loss": trial.losses[-1]} if trial.losses else {}
        self.note(record, trial, **{"unchanged": candidate is None, "first_loss": None, "last_loss": None, **losses})
        if candidate is None and all(one["failed"] for one in self.records if one["unchanged"]):
            raise self.failure({**record, "name": "the unchanged job"})
        return trial


def _document(
    found: Mapping[str, Any], choice: Choice, first: Row, trials: Trials, *, rounds: int, result: str
) -> dict[str, Any]:
    keep = found["keep"]
    command = redacted(trials.command)
    to_keep = unchanged = None
    if keep:
        variables = (f"{name}={shlex.quote(value)}" for name, value in keep["environment"].items())
        to_keep = " ".join([*variables, shlex.join(command)])
        if keep["settings"]:
            unchanged = f"stepscope tune --apply {shlex.quote(result)} -- {shlex.join(command)}"
    return {
        "schema": SCHEMA,
        "command": command,
        "first_report": {"folder": str(first.folder), "verdict": first.verdict, "findings": first.findings},
        "rounds": rounds,
        "warmup_steps": trials.warmup,
        "timed_steps": trials.steps,
        "wall_s": sum(one["wall_s"] for one in trials.ended),
        **found,
        "command_to_keep": to_keep,
        "command_unchanged_script": unchanged,
        "not_tried": [{"name": name, "why": why} for name, why in choice.left_out],
        "trials": [_trial_row(one) for one in trials.ended],
    }


def _trial_row(record: Mapping[str, Any]) -> dict[str, Any]:
    times = record["step_ms"] or []
    return {**record, "step_ms": fmean(times) if times else None, "steps": len(times)}


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
