"""`--engine dask://HOST:PORT`: the ranks' files are read by a cluster before this machine looks at them."""

import argparse
from collections.abc import Sequence

from stepscope.cli.messages import warn
from stepscope.errors import UsageError

_MAX_NAMED = 3


def read_ahead(args: argparse.Namespace, run: Sequence[str]) -> None:
    """Let the cluster read the run's files; those that it could not are named and read here."""
    from stepscope.cli.given.progress import work_progress
    from stepscope.run.engine.dask import read_on_cluster, scheduler_address
    from stepscope.run.sources import find_sources

    scheduler_address(args.engine)
    if getattr(args, "copies", None) is not None:
        raise UsageError("--engine needs files that all its machines see by the same path; an address is copied here")
    if args.no_cache:
        raise UsageError("--engine keeps what was read in the cache; leave --no-cache out, or give --cache-folder")
    paths = [source.path for source in find_sources(list(run)).files]
    with work_progress("reading on the cluster", unit="ranks") as progress:
        outcomes = read_on_cluster(args.engine, paths, cache_folder=args.cache_folder, progress=progress)
    left = [outcome for outcome in outcomes if outcome.problem]
    if left:
        named = "; ".join(f"{one.path}: {one.problem}" for one in left[:_MAX_NAMED])
        warn(f"{len(left)} of {len(outcomes)} files were not read on the cluster but here: {named}")
