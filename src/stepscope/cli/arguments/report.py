"""Where did the step go? The account of a run folder, a single trace, or any folder or glob of per-rank traces.

examples:
  stepscope report run-folder/
  stepscope report 'traces/*.json.gz' --json report.json
  stepscope report trace.json --json - | jq .ranks
  stepscope report run-folder/ --html report.html

A run without traces (`record --light`, or a job shorter than its window) shows step and region times by rank. A folder
of runs shows one row per run, and the results folder of `stepscope bench` its series.
Files over 32 MB leave a cache in `.stepscope/` beside them, so that a second report is quick (--no-cache).
"""

import argparse

from stepscope.cli.arguments.given_run import add_run_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; - for standard output")
    parser.add_argument("--html", metavar="PATH", help="write the report as one HTML file that needs no network")
    parser.add_argument("--calibration", metavar="FILE", help="calibration.json to draw in it (the run folder's own)")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
