"""`stepscope investigate`: the five steps, each printed as it is done, and the record kept in the run folder."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepscope.analyze.account import Account
from stepscope.cli.given.recorded_command import check_one_of_both, record_command
from stepscope.cli.given.run_arguments import account_from, warn_incomplete
from stepscope.cli.messages import say_with_answer
from stepscope.cli.output import check_outputs, write_json
from stepscope.contract.run_folder import SCHEMA, atomic_write
from stepscope.diagnose.finding import FINDING_IDS
from stepscope.diagnose.findings import diagnose
from stepscope.errors import UsageError
from stepscope.investigate.investigation import Measurement, Step, investigate
from stepscope.json_text import json_text
from stepscope.record.config import RecordConfig, default_out
from stepscope.report.terminal import console
from stepscope.report.text.investigation import investigation_json, investigation_text, print_step
from stepscope.side_file import read_side_json, read_side_text

_RECORD = "investigation.json"
_TEXT = "investigation.txt"


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read or the command failed."""
    check_outputs(args.json, force=args.force)
    check_one_of_both(args, "investigate")
    if args.finding is not None and args.finding not in FINDING_IDS:
        raise UsageError(f"--finding: unknown id {args.finding!r}; use one of {', '.join(FINDING_IDS)}")
    failed = _record_command(args) if args.command else False
    first = account_from(args)
    second = account_from(args, [args.fixed], unprofiled_ms=args.fixed_unprofiled_step_ms) if args.fixed else None
    steps = _print_steps(args, first, second)
    record = investigation_json(
        steps,
        run=first.run.name,
        fixed=second.run.name if second else None,
        finding=args.finding,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_json(args.json, {"schema": SCHEMA, **record}, force=args.force)
    _keep(args.run, record, steps)
    accounts = [account for account in (first, second) if account is not None]
    for account in accounts:
        warn_incomplete(account)
    return 3 if failed or any(account.run.unreadable for account in accounts) else 0


def _record_command(args: argparse.Namespace) -> bool:
    config = RecordConfig(out=args.out or default_out(), record_shapes=True)
    recorded = record_command(args.command, config, keep_stdout=args.json == "-")
    args.run = [str(recorded.folder)]
    return bool(recorded.exit_code)


def _print_steps(args: argparse.Namespace, first: Account, second: Account | None) -> list[Step]:
    out, done = console(sys.stdout), []
    fixed = _measured(second) if second else None
    for step in investigate(_measured(first), fixed=fixed, finding=args.finding, name=" ".join(args.run)):
        if args.json != "-":
            print_step(step, out)
        done.append(step)
    return done


def _measured(account: Account) -> Measurement:
    return Measurement(account, diagnose(account))


def _keep(given: list[str], record: dict[str, Any], steps: list[Step]) -> None:
    folder = Path(given[0])
    try:
        _check_run_folder(given)
        kept = _kept_so_far(folder / _RECORD)
        whole = {"schema": SCHEMA, "investigations": [*kept, record]}
        _write(folder / _RECORD, json_text(whole, indent=1) + "\n")
        before = read_side_text(folder / _TEXT) if kept and (folder / _TEXT).is_file() else ""
        text = investigation_text(steps, run=record["run"], fixed=record["fixed"], date=record["date"])
        _write(folder / _TEXT, before + text)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        say_with_answer(f"stepscope investigate: no record was kept: {why}; --json FILE writes one")
        return
    say_with_answer(f"stepscope investigate: kept in {folder / _RECORD} and {_TEXT}")


def _check_run_folder(given: list[str]) -> None:
    folder = Path(given[0])
    if len(given) > 1 or not folder.is_dir():
        raise ValueError(f"{' '.join(given)} is no run folder")
    if not folder.stat().st_mode & 0o222:
        raise ValueError(f"{folder} is read-only")


def _kept_so_far(path: Path) -> list[Any]:
    try:
        found, unusable = read_side_json(path)
    except FileNotFoundError:
        return []
    if unusable or not isinstance(found, dict) or not isinstance(found.get("investigations"), list):
        raise ValueError(f"{path.name} is there already and is no record of ours")
    return list(found["investigations"])


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as f:
        f.write(text.encode())
