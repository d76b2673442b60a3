"""Pass or fail: all ranks in one table, stragglers, check lists, and gates for CI. `report` shows what to fix.

examples:
  stepscope health run-folder/
  stepscope health -- torchrun --nproc-per-node=8 train.py
  stepscope health run-folder/ --fail-on 'data_loading_pct>30' --fail-on 'stragglers.count>0'

A command is recorded first, for three steps (--steps). --fail-on takes any number of the report's JSON by its dotted
name, and exits with 1 if one of the conditions is met.
"""

import argparse

from stepscope.cli.arguments import add_html, add_json, add_run_arguments, take_command
from stepscope.cli.outputs import show, warn
from stepscope.cli.record import check_one_of_both, record_command, steps_from
from stepscope.cli.run import report_of
from stepscope.record.config import RecordConfig, default_out

_STEPS = "10:13"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "health")
    add_run_arguments(parser, needed=False)
    parser.add_argument(
        "--fail-on", metavar="EXPR", action="append", default=[], help="condition that fails the run: 'step_ms>120'"
    )
    parser.add_argument("--guides", action="store_true", help="print the guides that apply, item by item")
    parser.add_argument("--out", metavar="DIR", help="run folder for a command (./stepscope-run)")
    parser.add_argument(
        "--steps", default=_STEPS, metavar="FIRST:LAST", help=f"steps of a command to profile ({_STEPS})"
    )
    add_json(parser, "report, checks and gates as JSON")
    add_html(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 if a gate fails, 3 if a rank could not be read or the command failed."""
    from stepscope.compare.conditions import judge, parse_gate
    from stepscope.report.pages.health import health_sheet

    check_one_of_both(args, "health")
    gates = [parse_gate(text) for text in args.fail_on]
    failed = False
    if args.command:
        config = RecordConfig(out=args.out or default_out()).with_steps(*steps_from(args.steps))
        failed = record_command(args, config)
    report, _ = report_of(args)
    results = judge(gates, report["document"])
    judged = [{"fail_on": str(r.gate), "holds": r.holds, "value": r.value, "said": r.said} for r in results]
    document = {**report["document"], "gates": judged}
    show(args, document, lambda: health_sheet(document, guides=args.guides))
    warn(*document["incomplete"])
    if not all(r.holds for r in results):
        return 1
    return 3 if failed else int(report["exit_code"])
