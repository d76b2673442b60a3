"""`stepscope bench`: one file per benchmark that starts the ranks, follows them and shows the results.

`arguments` and `session` are what they share, `overlap` and `profile` belong to `ddp`.
"""

import argparse
from importlib import import_module

from stepscope.bench.session.launcher import LauncherPlace, launched_by
from stepscope.cli.arguments.bench import WHAT
from stepscope.cli.arguments.bench.shared import WORLD_SIZE
from stepscope.cli.arguments.bench.sweeps import RANKS
from stepscope.cli.messages import print_stderr
from stepscope.errors import UsageError

_ON_RANKS = ("ddp", "fsdp", "strategy", "buckets", "scaling", "straggler", "accumulation", "batch-size")
"""what can run on the ranks of a launcher"""


def run(args: argparse.Namespace) -> int:
    """Return the exit code of the benchmark that was asked for."""
    args.launched = launched_by()
    if args.launched:
        _take_ranks(args, args.launched)
    code: int = import_module(f"stepscope.cli.bench.{WHAT[args.what][0]}").run(args)
    return code


def _take_ranks(args: argparse.Namespace, launched: LauncherPlace) -> None:
    """Measure on the launcher's ranks, all of them."""
    if args.what == "collectives":
        raise UsageError(
            f"bench collectives starts its ranks itself; under {launched.launcher} use "
            "`-m stepscope.bench.collectives --out FILE`"
        )
    if args.what not in _ON_RANKS:
        raise UsageError(f"bench {args.what} measures on one rank; start it without {launched.launcher}")
    unless_told = RANKS.get(args.what, WORLD_SIZE)
    if getattr(args, "world_size", unless_told) not in (unless_told, launched.world_size):
        raise UsageError(
            f"--world-size {args.world_size} differs from the {launched.world_size} ranks that {launched.launcher} "
            "started; leave it out"
        )
    args.world_size = launched.world_size
    if launched.writes:
        print_stderr(f"measuring on the {launched.world_size} ranks that {launched.launcher} started")
