"""`tune.json`: what was tried and what to keep; and a job run with what a file says to keep."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from stepscope.cli.tune.first_run import FirstRun
from stepscope.cli.tune.trials import Told, Trials
from stepscope.contract.live import SETTINGS, VARIABLES
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import InputError
from stepscope.record.config import RecordConfig
from stepscope.record.launch.launch import launch
from stepscope.side_file import read_side_json
from stepscope.tune.experiment import BASE, Choice, Experiment, document

_MAX_VALUE = 1_000_000


def tune_document(
    found: Experiment, choice: Choice, first: FirstRun, trials: Trials, *, rounds: int, result: str
) -> dict[str, Any]:
    """Return the content of `tune.json`; `result` is where it will lie."""
    keep = found.keep
    rows = [*found.settings, *([found.combined] if found.combined else [])]
    command = redacted(trials.command)
    base = [t.step_ms for t in found.base if t.step_ms is not None]
    return {
        "schema": SCHEMA,
        "command": command,
        "first_report": {
            "folder": str(first.folder),
            "verdict": first.verdict,
            "findings": [{"id": f.id, "title": f.title, "saving_pct": f.saving_pct} for f in first.findings],
        },
        "rounds": rounds,
        "stopped": found.stopped,
        "warmup_steps": trials.warmup,
        "timed_steps": trials.steps,
        "tried": len(found.settings),
        "wall_s": sum(told.wall_s for told in trials.told),
        "unchanged_step_ms": fmean(base) if base else None,
        **document(keep, rows),
        "command_to_keep": _command(keep.candidate.environment, command) if keep else None,
        "command_unchanged_script": _applied(result, command) if keep and keep.candidate.settings else None,
        "not_tried": [{"name": name, "why": why} for name, why in choice.left_out],
        "trials": [_trial(told) for told in trials.told],
    }


def apply_kept(path: str, command: Sequence[str]) -> int:
    """Return the exit code of a command run with what a `tune.json` says to keep; nothing of it is recorded."""
    settings, environment = _kept_in(path)
    config = RecordConfig(settings=settings, only_set=True)
    code = launch(command, config, environ={**os.environ, **environment}).exit_code
    return code if code >= 0 else 128 - code


def _kept_in(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        found, _ = read_side_json(Path(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"--apply {path}: {why}; give the tune.json of an earlier `stepscope tune`") from error
    keep = found.get("keep", 0) if isinstance(found, dict) else 0
    if keep is None:
        return {}, {}
    if not isinstance(keep, dict):
        raise InputError(f"--apply {path}: it is no result of `stepscope tune`; give its tune.json")
    settings = {k: v for k, v in _object(keep, "settings").items() if k in SETTINGS and _is_plain(v)}
    environment = {k: v for k, v in _object(keep, "environment").items() if k in VARIABLES and isinstance(v, str)}
    return settings, environment


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, int) and 0 <= value <= _MAX_VALUE)


def _object(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _command(environment: Mapping[str, str], command: Sequence[str]) -> str:
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(command)])


def _applied(result: str, command: Sequence[str]) -> str:
    return f"stepscope tune --apply {shlex.quote(result)} -- {shlex.join(command)}"


def _trial(told: Told) -> dict[str, Any]:
    t = told.trial
    return {
        "name": told.name,
        "unchanged": told.name == BASE,
        "when": told.when,
        "step_ms": t.step_ms,
        "steps": t.steps,
        "first_loss": t.losses[0] if t.losses else None,
        "last_loss": t.losses[-1] if t.losses else None,
        "wall_s": told.wall_s,
        "failed": t.failed,
        "log": told.log,
    }
