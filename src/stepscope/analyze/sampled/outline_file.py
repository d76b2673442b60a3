"""One file of a run read, and what is kept of its rank: a task that needs no other, whose result is small.

It runs here on a few threads, or on the workers of a cluster, and gives the same everywhere.
"""

from dataclasses import replace
from pathlib import Path

from stepscope.analyze.ranks.outlined_rank import OutlinedRank, outlined
from stepscope.contract.run_folder import rank_file
from stepscope.errors import StepscopeError
from stepscope.run.collectives.flight import FLIGHT_RECORDER
from stepscope.run.rank import rank_of_trace
from stepscope.run.sources import assign_ranks, rank_in_header, stated_name
from stepscope.trace.budget import Budget
from stepscope.trace.cache import read_cached

BY_ORDER = "order"


def outline_file(
    path: str, root: str | None, cache_folder: str | None, keep: bool, total_bytes: int
) -> OutlinedRank | None:
    """Return what is kept of the rank in a file of a run of `total_bytes`; None where the file cannot be read."""
    folder = None if cache_folder is None else Path(cache_folder)
    try:
        trace = read_cached(path, cache_folder=folder, enabled=keep, budget=Budget(total_bytes))
        name = stated_name(Path(path), root=None if root is None else Path(root))
        [(number, source)] = assign_ranks([(name, rank_in_header(trace.header))])
        beside = Path(path).parent / rank_file(number, FLIGHT_RECORDER)
        flight = None if source == BY_ORDER else beside
        return outlined(rank_of_trace(trace, rank=number, rank_source=source, flight_file=flight))
    except StepscopeError:  # said by the reading of those that are kept in full
        return None


def with_shared_groups(ranks: list[OutlinedRank]) -> list[OutlinedRank]:
    """Return the ranks with equal groups as one: each rank of a group lists all its ranks."""
    known: dict[object, object] = {}

    def shared(rank: OutlinedRank) -> OutlinedRank:
        groups = tuple(known.setdefault(group, group) for group in rank.collectives.groups)
        return replace(rank, collectives=replace(rank.collectives, groups=groups))  # type: ignore[arg-type]

    return [shared(rank) for rank in ranks]
