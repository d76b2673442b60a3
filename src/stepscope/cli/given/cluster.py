"""`--engine dask://HOST:PORT`: the ranks' files are read by a cluster before this machine looks at them."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.messages import warn
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.analyze.outlined_rank import OutlinedRank
    from stepscope.analyze.sampled import Arguments, OutlineFiles

_MAX_NAMED = 3


def read_ahead(args: argparse.Namespace, run: Sequence[str]) -> None:
    """Let the cluster read the run's files; those that it could not are named and read here."""
    from stepscope.cli.given.progress import work_progress
    from stepscope.run.dask import read_on_cluster
    from stepscope.run.sources import find_sources

    _check(args)
    if args.no_cache:
        raise UsageError("--engine keeps what was read in the cache; leave --no-cache out, or give --cache-folder")
    paths = [source.path for source in find_sources(list(run)).files]
    with work_progress("reading on the cluster", unit="ranks") as progress:
        outcomes = read_on_cluster(args.engine, paths, cache_folder=args.cache_folder, progress=progress)
    _say_left([(one.path, one.problem) for one in outcomes if one.problem], len(outcomes))


def outlines_from(args: argparse.Namespace) -> "OutlineFiles":
    """Return what lets the cluster read the ranks of a large run; those that it could not are named and read here."""
    from stepscope.analyze.sampled import outline_file
    from stepscope.cli.given.progress import work_progress
    from stepscope.run.dask import FailedTask, run_on_cluster

    _check(args)

    def outlined(each: "Sequence[Arguments]") -> "list[OutlinedRank | None]":
        given = [(_absolute(path), _absolute(root), *how) for path, root, *how in each]
        with work_progress("reading on the cluster", unit="ranks") as progress:
            found = run_on_cluster(args.engine, outline_file, given, progress=progress)
        _say_left(
            [(path, r.why) for (path, *_), r in zip(each, found, strict=True) if isinstance(r, FailedTask)], len(each)
        )
        here = [outline_file(*one) if isinstance(r, FailedTask) else r for one, r in zip(each, found, strict=True)]
        return [None if rank is None else _named(rank, path) for rank, (path, *_) in zip(here, each, strict=True)]

    return outlined


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _named(rank: "OutlinedRank", path: str) -> "OutlinedRank":
    return replace(rank, trace=replace(rank.trace, path=path))


def _check(args: argparse.Namespace) -> None:
    from stepscope.run.dask import scheduler_address

    scheduler_address(args.engine)
    if getattr(args, "copies", None) is not None:
        raise UsageError("--engine needs files that all its machines see by the same path; an address is copied here")


def _say_left(left: Sequence[tuple[str, str]], of: int) -> None:
    if left:
        named = "; ".join(f"{path}: {why}" for path, why in left[:_MAX_NAMED])
        warn(f"{len(left)} of {of} files were not read on the cluster but here: {named}")
