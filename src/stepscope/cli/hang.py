"""`stepscope hang`: who did not arrive, from the flight recorder dumps of a job that hangs or died."""

import argparse
import sys

from stepscope.analyze.hang import hang_of
from stepscope.cli.messages import warn
from stepscope.cli.output import check_outputs, write_json
from stepscope.document.hang import hang_json
from stepscope.report.terminal import console
from stepscope.report.text.hang import print_hang
from stepscope.run.dumps import read_dumps


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a dump could not be read."""
    check_outputs(args.json, force=args.force)
    dumps = read_dumps(args.dumps)
    found = hang_of(dumps.by_rank)
    write_json(args.json, hang_json(found, dumps) if args.json else None, force=args.force)
    if args.json != "-":
        print_hang(found, console(sys.stdout))
    for line in (*dumps.unreadable, *dumps.notes):
        warn(line)
    return 3 if dumps.unreadable else 0
