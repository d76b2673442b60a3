"""Who did not arrive? From the flight recorder dumps of a job that hangs or died.

examples:
  stepscope hang /tmp/nccl_trace_rank_*
  stepscope hang dumps/ --json -
  stepscope hang run-folder/

torch writes the dumps when a collective times out (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1).
"""

import argparse

from stepscope.cli.run_arguments import add_html, add_json, check_outputs, terminal, warn, write_json, write_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("dumps", metavar="DUMPS", nargs="+", help="dumps of the ranks, their folder, or a run folder")
    add_json(parser, "all groups and calls as JSON")
    add_html(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a dump could not be read."""
    from stepscope.analyze.hang import hang_of
    from stepscope.document.hang import hang_json
    from stepscope.report.text.hang import print_hang
    from stepscope.run.dumps import read_dumps

    check_outputs(args.json, args.html, force=args.force)
    dumps = read_dumps(args.dumps)
    found = hang_of(dumps.by_rank)
    document = hang_json(found, dumps) if args.json or args.html else None
    write_json(args.json, document, force=args.force)
    if args.html and document:
        from stepscope.report.html.sheets import hang_sheet, sheet_page

        write_output(args.html, sheet_page(hang_sheet(document)), force=args.force)
    if args.json != "-":
        print_hang(found, terminal())
    for line in (*dumps.unreadable, *dumps.notes):
        warn(line)
    return 3 if dumps.unreadable else 0
