"""Runs over time: step, MFU, memory and findings by commit, configuration and host; hosts that are slow across jobs.

examples:
  stepscope history runs/
  stepscope history runs/ --by host
  stepscope history runs/ --by config --json history.json
  stepscope history s3://bucket/runs --no-traces

A run is a folder with run.json or traces, up to three levels below. What is found is kept in `.stepscope/` there, so
that only new runs are analysed the next time (--no-cache). `stepscope compare RUN --against runs/` holds one run
against them.
"""

import argparse

from stepscope.cli.arguments.sizes import at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="folder of runs, or its address")
    parser.add_argument(
        "--by", choices=("commit", "config", "host", "device"), default="commit", help="groups (default: commit)"
    )
    parser.add_argument("--no-traces", action="store_true", help="by run.json and step logs alone: quick, no findings")
    parser.add_argument(
        "--json", metavar="PATH", help="write all runs, groups and hosts as JSON; - for standard output"
    )
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="files read at once (default: all cores)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write what was kept")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
