"""Goodput and energy of a whole job: each second from launch to end by part, across restarts and resumed runs.

examples:
  stepscope job run-folder/
  stepscope job run-folder/ --html job.html
  stepscope job run-folder/ --json -

Any run folder of the job will do: those of its restarts (run-2, run-3, ...) and of later launches that read its
checkpoints are found next to it. Traces are not needed.
"""

import argparse

from stepscope.cli.arguments import add_html, add_json
from stepscope.cli.outputs import show, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder of the job")
    add_json(parser, "the result as JSON")
    add_html(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0."""
    from stepscope.document.job import job_json
    from stepscope.report.pages.job import job_sheet
    from stepscope.run.attempts import attempts_of

    document = job_json(attempts_of(args.run))
    show(args, document, lambda: job_sheet(document))
    warn(*document["warnings"])
    return 0
