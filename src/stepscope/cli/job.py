"""Goodput and energy of a whole job: each second from launch to end by part, across restarts and resumed runs.

examples:
  stepscope job run-folder/
  stepscope job run-folder/ --html job.html
  stepscope job run-folder/ --json -

Any run folder of the job will do: those of its restarts (run-2, run-3, ...) and of later launches that read its
checkpoints are found next to it. Traces are not needed.
"""

import argparse

from stepscope.cli.run_arguments import add_html, add_json, check_outputs, terminal, warn, write_json, write_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder of the job")
    add_json(parser, "the result as JSON")
    add_html(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0."""
    from stepscope.document.job import job_json
    from stepscope.report.text.job import print_job
    from stepscope.run.attempts import attempts_of

    check_outputs(args.json, args.html, force=args.force)
    document = job_json(attempts_of(args.run))
    write_json(args.json, document, force=args.force)
    if args.html:
        from stepscope.report.html.sheets import job_sheet, sheet_page

        write_output(args.html, sheet_page(job_sheet(document)), force=args.force)
    if args.json != "-":
        print_job(document, terminal())
    for line in document["warnings"]:
        warn(line)
    return 0
