"""`stepscope health`: the account in one table, check lists, and gates that set the exit code."""

import argparse
import sys
from typing import Any

from stepscope.cli.given.recorded_command import check_one_of_both, record_command
from stepscope.cli.given.run_arguments import account_from, warn_incomplete
from stepscope.cli.output import check_outputs, write_json
from stepscope.cli.record import steps_from
from stepscope.compare.conditions import GateResult, judge, parse_gate
from stepscope.diagnose.checks import checks_of
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.guides import guides_of
from stepscope.diagnose.verdict import conclude
from stepscope.document.report import report_json
from stepscope.record.config import RecordConfig, default_out
from stepscope.report.terminal import console
from stepscope.report.text.health import print_guides, print_health
from stepscope.run.load import Run


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 where a gate does not hold, 3 where a rank could not be read or the command failed."""
    check_outputs(args.json, force=args.force)
    check_one_of_both(args, "health")
    gates = [parse_gate(text) for text in args.fail_on]
    failed = _record(args) if args.command else False
    account = account_from(args)
    diagnosis = diagnose(account)
    report = report_json(account, diagnosis)
    results = judge(gates, report)
    write_json(args.json, {**report, "gates": [_gate_json(r) for r in results]}, force=args.force)
    if args.json != "-":
        out = console(sys.stdout)
        print_health(account, conclude(account, diagnosis), checks_of(account), results, out)
        if args.guides:
            print_guides(guides_of(account), out)
    warn_incomplete(account)
    return _exit_code(results, account.run, failed=failed)


def _record(args: argparse.Namespace) -> bool:
    config = RecordConfig(out=args.out or default_out()).with_steps(*steps_from(args.steps))
    recorded = record_command(args.command, config, keep_stdout=args.json == "-")
    args.run = [str(recorded.folder)]
    return bool(recorded.exit_code)


def _gate_json(result: GateResult) -> dict[str, Any]:
    return {"fail_on": str(result.gate), "holds": result.holds, "value": result.value, "said": result.said}


def _exit_code(results: list[GateResult], run: Run, *, failed: bool) -> int:
    if not all(r.holds for r in results):
        return 1
    return 3 if run.unreadable or failed else 0
