"""The run that a command line names: its arguments, and the account they lead to."""

import argparse
from pathlib import Path

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.kernels.efficiency import Given
from stepscope.cli.progress import reading_progress
from stepscope.cli.say import warn
from stepscope.cli.sizes import above_zero, at_least_one
from stepscope.cost.chips.table import load_chips
from stepscope.cost.collectives.calibration import Calibration
from stepscope.cost.collectives.calibration_file import load_calibration
from stepscope.run.load import Run, incomplete, load


def add_run_arguments(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Add what names a run and what its files do not say."""
    parser.add_argument(
        "run", metavar="RUN", nargs="+" if needed else "*", help="run folder, trace, folder of traces, or glob"
    )
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what the files of a run do not say, and how they are read."""
    for name, metavar, what in (
        ("--unprofiled-step-ms", "X", "the step's time without the profiler"),
        ("--flops-per-step", "F", "model FLOPs of the whole job per step"),
        ("--tokens-per-step", "N", "tokens of the whole job per step"),
        ("--samples-per-step", "N", "samples of the whole job per step"),
        ("--peak-tflops", "P", "peak of one device in TFLOP/s"),
    ):
        parser.add_argument(name, type=above_zero, metavar=metavar, help=what)
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="TOML file with chips of your own")
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="files read at once (default: all cores)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument("--cache-folder", type=Path, metavar="DIR", help="keep the cache there, not beside the traces")


def account_from(
    args: argparse.Namespace, run: list[str] | None = None, *, unprofiled_ms: float | None = None
) -> Account:
    """Return the account of the arguments' run, or of another one with the same options and its own unprofiled step."""
    return account_with(args, run_from(args, run), unprofiled_ms=unprofiled_ms if run else args.unprofiled_step_ms)


def run_from(args: argparse.Namespace, run: list[str] | None = None) -> Run:
    """Return the arguments' run, or another one read in the same way."""
    with reading_progress() as progress:
        return load(
            run or args.run, jobs=args.jobs, cache=not args.no_cache, cache_folder=args.cache_folder, progress=progress
        )


def account_with(args: argparse.Namespace, run: Run, *, unprofiled_ms: float | None) -> Account:
    """Return the account of a run with the options of the command line."""
    return account_of(
        run,
        given=Given(
            flops_per_step=args.flops_per_step,
            tokens_per_step=args.tokens_per_step,
            samples_per_step=args.samples_per_step,
            peak_tflops=args.peak_tflops,
        ),
        unprofiled_ms=unprofiled_ms,
        chips=load_chips(args.hardware) if args.hardware else (),
    )


def warn_incomplete(run: Run) -> None:
    """Say on standard error what of the run was not read, for commands whose answer does not."""
    for line in incomplete(run):
        warn(line)


def calibration_for(path: str | None, account: Account) -> Calibration | None:
    """Return the calibration in a file, or the one that lies beside the run's traces; None where there is none."""
    beside = Path(account.run.ranks[0].trace.path).parent / "calibration.json"
    return load_calibration(path or beside) if path or beside.is_file() else None
