"""Find out why a step is slow, in five steps: baseline, category, detail, root cause, and validation of a fix.

Use it to keep a record or to validate a fix with --fixed; `report` shows the same result on one screen.

examples:
  stepscope investigate run-folder/
  stepscope investigate run-folder/ --fixed second-run/
  stepscope investigate -- torchrun --nproc-per-node=8 train.py

A command is recorded first. Results are stored in the run folder, as investigation.json and investigation.txt;
later investigations are added to them. A single trace or a glob has no run folder: use --json.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.record import check_one_of_both, record_command
from stepscope.cli.run_arguments import (
    above_zero,
    account_from,
    add_json,
    add_options,
    add_run_arguments,
    check_outputs,
    say_with_answer,
    take_command,
    terminal,
    warn_incomplete,
    write_json,
)
from stepscope.contract.run_folder import SCHEMA, atomic_write
from stepscope.errors import UsageError, did_you_mean
from stepscope.record.config import RecordConfig, default_out
from stepscope.side_file import read_side_json, read_side_text
from stepscope.units import json_text

if TYPE_CHECKING:
    from stepscope.investigate.investigation import Step

_RECORD = "investigation.json"
_TEXT = "investigation.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "investigate")
    add_run_arguments(parser, needed=False)
    fix = {
        "--fixed": ("RUN2", "the run with the fix: did it save what was predicted?"),
        "--finding": ("ID", "the finding that was fixed (default: the resolved ones)"),
    }
    add_options(parser, fix)
    parser.add_argument(
        "--fixed-unprofiled-step-ms", type=above_zero, metavar="X", help="RUN2's step without the profiler"
    )
    parser.add_argument("--out", metavar="DIR", help="run folder for a command (./stepscope-run)")
    add_json(parser, "the investigation as JSON")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read or the command failed."""
    from stepscope.diagnose.finding import FINDING_IDS
    from stepscope.diagnose.findings import diagnose
    from stepscope.investigate.investigation import Measurement, investigate
    from stepscope.report.text.investigation import investigation_json, print_step

    check_outputs(args.json, force=args.force)
    check_one_of_both(args, "investigate")
    if args.finding is not None and args.finding not in FINDING_IDS:
        raise UsageError(f"--finding: unknown id {args.finding!r}; {did_you_mean(args.finding, FINDING_IDS)}")
    failed = False
    if args.command:
        failed = record_command(args, RecordConfig(out=args.out or default_out(), record_shapes=True))
    accounts = [account_from(args)]
    if args.fixed:
        accounts.append(account_from(args, [args.fixed], unprofiled_ms=args.fixed_unprofiled_step_ms))
    first, *second = [Measurement(account, diagnose(account)) for account in accounts]
    steps = []
    for step in investigate(first, fixed=second[0] if second else None, finding=args.finding, name=" ".join(args.run)):
        if args.json != "-":
            print_step(step, terminal())
        steps.append(step)
    record = investigation_json(
        steps,
        run=first.account.run.name,
        fixed=second[0].account.run.name if second else None,
        finding=args.finding,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_json(args.json, {"schema": SCHEMA, **record}, force=args.force)
    try:
        _append_record(args.run, record, steps)
        done = f"written to {Path(args.run[0]) / _RECORD} and {_TEXT}"
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        done = "" if args.json else f"no record was written: {why}; --json FILE writes one"
    if done:
        say_with_answer(f"stepscope investigate: {done}")
    codes = [warn_incomplete(account) for account in accounts]
    return 3 if failed or any(codes) else 0


def _append_record(given: list[str], record: dict[str, Any], steps: "list[Step]") -> None:
    from stepscope.report.text.investigation import investigation_text

    folder = Path(given[0])
    if len(given) > 1 or not folder.is_dir():
        raise ValueError(f"{' '.join(given)} is not a run folder")
    if not folder.stat().st_mode & 0o222:
        raise ValueError(f"{folder} is read-only")
    earlier: list[Any] = []
    if (folder / _RECORD).exists():
        found, unusable = read_side_json(folder / _RECORD)
        if unusable or not isinstance(found, dict) or not isinstance(found.get("investigations"), list):
            raise ValueError(f"{_RECORD} is there already and is no record of ours")
        earlier = found["investigations"]
    before = read_side_text(folder / _TEXT) if earlier and (folder / _TEXT).is_file() else ""
    text = investigation_text(steps, run=record["run"], fixed=record["fixed"], date=record["date"])
    whole = {"schema": SCHEMA, "investigations": [*earlier, record]}
    for name, content in ((_RECORD, json_text(whole, indent=1) + "\n"), (_TEXT, before + text)):
        with atomic_write(folder / name) as f:
            f.write(content.encode())
