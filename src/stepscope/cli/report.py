"""Where did the step go? The account of a run folder, a single trace, or any folder or glob of per-rank traces.

examples:
  stepscope report run-folder/
  stepscope report 'traces/*.json.gz' --json report.json
  stepscope report trace.json --json - | jq .ranks
  stepscope report run-folder/ --html report.html

Files over 32 MB leave a cache in `.stepscope/` beside them, so that a second report is quick (--no-cache).
"""

import argparse
import json
import sys
from pathlib import Path

from stepscope.analyze.account import account_of
from stepscope.analyze.efficiency import Given
from stepscope.cli.output import write_output
from stepscope.cli.progress import reading_progress
from stepscope.cost.chip_table import Chip, load_chips
from stepscope.diagnose.findings import diagnose
from stepscope.report.html import render_html
from stepscope.report.json_report import report_json
from stepscope.report.terminal import console
from stepscope.report.text import print_summary
from stepscope.run.load import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", nargs="+", help="run folder, trace, folder of traces, or glob")
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; - for standard output")
    parser.add_argument("--html", metavar="PATH", help="write the report as one HTML file that needs no network")
    parser.add_argument(
        "--unprofiled-step-ms", type=_above_zero, metavar="X", help="the step's time without the profiler"
    )
    parser.add_argument("--flops-per-step", type=_above_zero, metavar="F", help="model FLOPs of the whole job per step")
    parser.add_argument("--tokens-per-step", type=_above_zero, metavar="N", help="tokens of the whole job per step")
    parser.add_argument("--samples-per-step", type=_above_zero, metavar="N", help="samples of the whole job per step")
    parser.add_argument("--peak-tflops", type=_above_zero, metavar="P", help="peak of one device in TFLOP/s")
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="TOML file with chips of your own")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    parser.add_argument("--jobs", type=_positive, metavar="N", help="files read at once (default: all cores)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument("--cache-folder", type=Path, metavar="DIR", help="keep the cache there, not beside the traces")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    with reading_progress() as progress:
        recorded = load(
            args.run,
            jobs=args.jobs,
            cache=not args.no_cache,
            cache_folder=args.cache_folder,
            progress=progress,
        )
    account = account_of(recorded, given=_given(args), unprofiled_ms=args.unprofiled_step_ms, chips=_chips(args))
    diagnosis = diagnose(account)
    if args.json:
        write_output(args.json, json.dumps(report_json(account, diagnosis), indent=1) + "\n", force=args.force)
    if args.html:
        write_output(args.html, render_html(account, diagnosis), force=args.force)
    if "-" not in (args.json, args.html):
        print_summary(account, diagnosis, console(sys.stdout))
    return 3 if recorded.unreadable else 0


def _given(args: argparse.Namespace) -> Given:
    return Given(
        flops_per_step=args.flops_per_step,
        tokens_per_step=args.tokens_per_step,
        samples_per_step=args.samples_per_step,
        peak_tflops=args.peak_tflops,
    )


def _chips(args: argparse.Namespace) -> tuple[Chip, ...]:
    return load_chips(args.hardware) if args.hardware else ()


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text}")
    return number
