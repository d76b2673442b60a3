"""The run for other tools: one timeline of all ranks on one clock, or its tables.

examples:
  stepscope export run-folder/ --perfetto timeline.pftrace          open in ui.perfetto.dev
  stepscope export run-folder/ --perfetto timeline.json.gz          Chrome's JSON: chrome://tracing and others
  stepscope export run-folder/ --perfetto t.pftrace --ranks 0-7 --steps 12:14 --gpu-only
  stepscope export run-folder/ --csv tables/ --tables steps,budget
  stepscope export run-folder/ --tensorboard logs/                  then: tensorboard --logdir logs/
  stepscope export run-folder/ --mlflow my-experiment               curves and the report, to a tracking server

Without filters a run of more than a million slices is thinned, and what was left out is said. Times in the tables are
nanoseconds; docs/tables.md has every column.
"""

import argparse

from stepscope.cli.arguments.given_run import add_run_arguments
from stepscope.cli.arguments.sizes import above_zero, at_least_zero, whole_number
from stepscope.report.timeline_limit import MAX_SLICES
from stepscope.tables.schema import TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument(
        "--perfetto", metavar="FILE", help="timeline; Chrome's JSON where FILE ends in .json, compressed with .gz"
    )
    parser.add_argument("--csv", metavar="DIR", help="tables as CSV, one file each")
    parser.add_argument("--parquet", metavar="DIR", help="tables as Parquet, one file each")
    parser.add_argument("--tensorboard", metavar="DIR", help="each rank's trace and curves over steps, for TensorBoard")
    parser.add_argument("--wandb", metavar="PROJECT", help="send curves and report to W&B, where it is installed")
    parser.add_argument(
        "--mlflow", metavar="EXPERIMENT", help="send curves and report to MLflow, where it is installed"
    )
    parser.add_argument(
        "--tables", type=_tables, default=tuple(TABLES), metavar="A,B", help="only these tables (default: all)"
    )
    chosen = parser.add_argument_group("what the timeline shows")
    chosen.add_argument("--ranks", type=_ranks, metavar="0,3,8-15", help="these ranks")
    chosen.add_argument("--steps", metavar="FIRST:LAST", help="these steps, LAST exclusive")
    chosen.add_argument("--gpu-only", action="store_true", help="what ran on devices, steps and collectives")
    chosen.add_argument("--min-us", type=above_zero, metavar="N", help="slices of at least N microseconds")
    chosen.add_argument(
        "--max-slices",
        type=at_least_zero,
        default=MAX_SLICES,
        metavar="N",
        help=f"thin what is not chosen until so many are left ({MAX_SLICES:,}); 0 keeps all",
    )
    parser.add_argument("--json", metavar="PATH", help="write what was written where as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")


def _tables(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= set(TABLES):
        raise argparse.ArgumentTypeError(f"no such table in {text!r}; use some of {', '.join(TABLES)}")
    return names


def _ranks(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = whole_number(first), whole_number(last or first)
        if low is None or high is None or part.endswith("-"):
            raise argparse.ArgumentTypeError(f"{text!r} are no ranks; write them as 0,3,8-15")
        if high < low or high - low > 1 << 20:
            raise argparse.ArgumentTypeError(f"{part!r} are no ranks; write them as 0,3,8-15")
        found.update(range(low, high + 1))
    return frozenset(found)
