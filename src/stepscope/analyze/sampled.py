"""A run of any number of ranks in bounded memory: every rank is read, and a limited number is analysed in full.

    each file -> its rank's outline        independent tasks, here or on a cluster; tables are dropped after each
    all outlines -> clocks, waits          which ranks are late, which differ
    those ranks -> tables, again           everything else is of these

Runs below the limit are read in full. So are runs whose files are not independent: a rank's number, or its steps, is
known only from all files together, a file holds several ranks, or several files hold one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import cpu_count
from pathlib import Path

import numpy as np

from stepscope.analyze.collective_costs import OutlinedRank, outlined, waited_for_ns, window_of
from stepscope.analyze.stragglers import late_ranks
from stepscope.contract.run_folder import rank_file
from stepscope.errors import StepscopeError
from stepscope.run.aligned import AlignedRun, aligned
from stepscope.run.collectives import FLIGHT_RECORDER
from stepscope.run.formats import Progress, is_sqlite, refuse_too_many, size_on_disk
from stepscope.run.load import MAX_FULL_RANKS, MAX_JOBS, Run, load_sources, run_description, run_name
from stepscope.run.rank import Rank, rank_of_trace
from stepscope.run.sources import Source, Sources, assign_ranks, find_sources, rank_in_header, stated_name
from stepscope.trace.cache import read_cached
from stepscope.trace.read import Budget, return_freed

# Choice of the ranks of a large run that are analysed in full.
#
#     the first rank              its clock is the job's
#     requested ranks             by --ranks or --rank
#     late ranks                  by their own times, the latest first: a quarter of the places at most
#     ranks that are waited for   by the time that others wait for them: an eighth
#     most and least compute      in the window: a sixteenth each
#     one of each role            ranks that take part in other collectives (stages of a pipeline): an eighth
#     one of each host            an eighth
#     the rest                    evenly by rank number
#
# Late ranks, roles and waits are those of all ranks, so a rank that costs the job time is always among those in full.
# Means over ranks are then of the ranks in full: ranks that differ are over-represented.

_RULE = "the first, late, most waited for, most and least compute, one of each role and host, the rest evenly"


def chosen_indices(every: AlignedRun, most: int, wanted: Collection[int] = ()) -> list[int]:
    """Return the indices of at most `most` ranks to analyse in full; `wanted` are rank numbers."""
    ranks = every.run.ranks
    place = {rank.rank: index for index, rank in enumerate(ranks)}
    waited = waited_for_ns(every)
    windows = {index: window for index, rank in enumerate(ranks) if (window := window_of(rank)) is not None}
    by_compute = sorted(windows, key=lambda index: (windows[index].compute.total_ns, index))
    most_compute = sorted(windows, key=lambda index: (-windows[index].compute.total_ns, index))
    chosen = dict.fromkeys([0, *(index for index, rank in enumerate(ranks) if rank.rank in wanted)])
    for candidates, share in (
        ([place[one.rank] for one in late_ranks(every)], 4),
        ([int(index) for index in np.argsort(-waited, kind="stable") if waited[index] > 0], 8),
        (most_compute, 16),
        (by_compute, 16),
        (_first_of_each(map(_role, ranks)), 8),
        (_first_of_each(rank.host for rank in ranks), 8),
    ):
        chosen.update(dict.fromkeys(candidates[: max(1, most // share)]))
    first = list(chosen)[:most]
    others = [index for index in range(len(ranks)) if index not in set(first)]
    return sorted(first + _evenly(others, most - len(first)))


def _role(rank: Rank) -> tuple[object, ...]:
    c = rank.collectives
    names = [(group.desc, group.size) for group in c.groups]
    count = Counter((int(op), names[group]) for op, group in zip(c.op.tolist(), c.group.tolist(), strict=True))
    return (*sorted(count.items(), key=repr), rank.has_device)


def _first_of_each(kinds: Iterable[object]) -> list[int]:
    first: dict[object, int] = {}
    for index, kind in enumerate(kinds):
        first.setdefault(kind, index)
    return list(first.values())


def _evenly(others: list[int], count: int) -> list[int]:
    """Return `count` of these, evenly spread.

    >>> _evenly([2, 3, 5, 7, 8, 9], 3)
    [2, 5, 8]
    """
    if count <= 0:
        return []
    return [others[i * len(others) // count] for i in range(count)] if len(others) > count else others


# One file of a run, read and outlined: an independent task with a small result, on a few threads here or on the
# workers of a cluster.

_BY_ORDER = "order"


def outline_file(
    path: str, root: str | None, cache_folder: str | None, keep: bool, total_bytes: int
) -> OutlinedRank | None:
    """Return the outline of the rank in a file of a run of `total_bytes`; None where the file cannot be read."""
    folder = None if cache_folder is None else Path(cache_folder)
    try:
        trace = read_cached(path, cache_folder=folder, enabled=keep, budget=Budget(total_bytes))
        name = stated_name(Path(path), root=None if root is None else Path(root))
        [(number, source)] = assign_ranks([(name, rank_in_header(trace.header))])
        flight = None if source == _BY_ORDER else Path(path).parent / rank_file(number, FLIGHT_RECORDER)
        return outlined(rank_of_trace(trace, rank=number, rank_source=source, flight_file=flight))
    except StepscopeError:  # reported when the ranks in full are read
        return None


def _with_shared_groups(ranks: list[OutlinedRank]) -> list[OutlinedRank]:
    known: dict[object, object] = {}

    def shared(rank: OutlinedRank) -> OutlinedRank:
        groups = tuple(known.setdefault(group, group) for group in rank.collectives.groups)
        return replace(rank, collectives=replace(rank.collectives, groups=groups))  # type: ignore[arg-type]

    return [shared(rank) for rank in ranks]


# of all ranks in full together: some 1.6 GB
_MAX_FULL_EVENTS = 10_000_000
MIN_FULL_RANKS = 16
# of `outline_file`
Arguments = tuple[str, str | None, str | None, bool, int]
# Called with what `outline_file` takes for each file; gives what it gives, in the same order.
OutlineFiles = Callable[[Sequence[Arguments]], list[OutlinedRank | None]]
_NSIGHT = (".nsys-rep", ".sqlite")


def load_run(
    given: str | Path | Sequence[str | Path],
    *,
    full_ranks: int | None = None,
    wanted: Collection[int] = (),
    jobs: int | None = None,
    cache: bool = True,
    cache_folder: Path | None = None,
    progress: Progress | None = None,
    outline_files: OutlineFiles | None = None,
) -> Run:
    """Return the run in a file, a folder, a glob or a list of them, as `stepscope.run.load` does.

    Of more than `full_ranks` ranks that number is in `ranks`, chosen by a rule that `warnings` states, and the outlines
    of all are in `everyone`. The default is 128, and fewer where their traces are large. `ranks` includes those in
    `wanted`. `outline_files` reads the ranks elsewhere.
    """
    sources = find_sources(given)
    name = run_name(given, sources.folder)
    most = MAX_FULL_RANKS if full_ranks is None else max(full_ranks, 2)
    jobs = min(jobs or cpu_count() or 1, MAX_JOBS)
    everyone: list[OutlinedRank] = []
    if len(sources.files) > most and not any(map(_is_nsight, sources.files)):
        outlines = _outlines(sources, jobs, cache, cache_folder, progress, outline_files)
        found = sorted(_with_shared_groups([one for one in outlines if one is not None]), key=lambda one: one.rank)
        also = [rank.rank for rank in found if rank.rank in wanted]
        most = max(most if full_ranks is not None else min(most, _few_enough(found)), len(also) + 1)
        if len(found) > most and _told_one_by_one(found):
            everyone = found
            shared = aligned(Run("", tuple(everyone), description=run_description(sources.folder)[0]))
            chosen = {everyone[index].trace.path for index in chosen_indices(shared, most, also)}
            kept = [
                source
                for source, outline in zip(sources.files, outlines, strict=True)
                if outline is None or outline.trace.path in chosen
            ]
            sources = replace(sources, files=tuple(kept))
    return load_sources(
        sources,
        name=name,
        jobs=jobs,
        cache=cache,
        cache_folder=cache_folder,
        progress=progress,
        everyone=everyone,
        sampling=_said(len(everyone), most) if everyone else "",
    )


def _outlines(
    sources: Sources,
    jobs: int,
    cache: bool,
    cache_folder: Path | None,
    progress: Progress | None,
    outline_files: OutlineFiles | None,
) -> list[OutlinedRank | None]:
    total = sum(map(size_on_disk, sources.files))
    refuse_too_many(len(sources.files), Budget(total))
    root = None if sources.folder is None else str(sources.folder)
    folder = None if cache_folder is None else str(cache_folder.absolute())
    each = [(str(source.path), root, folder, cache, total) for source in sources.files]
    found = outline_files(each) if outline_files else _outlined_here(each, sources.files, jobs=jobs, progress=progress)
    return_freed(total)
    return found


def _outlined_here(
    each: Sequence[Arguments], files: Sequence[Source], *, jobs: int, progress: Progress | None
) -> list[OutlinedRank | None]:
    sizes = [size_on_disk(source) for source in files]
    done: list[int] = []

    def outline(index: int) -> OutlinedRank | None:
        found = outline_file(*each[index])
        done.append(sizes[index])
        if progress:
            progress(sum(done), sum(sizes))
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(outline, range(len(each))))


def _is_nsight(source: Source) -> bool:
    return source.path.name.endswith(_NSIGHT) or is_sqlite(source.path)


def _told_one_by_one(ranks: Sequence[OutlinedRank]) -> bool:
    numbers = {rank.rank for rank in ranks}
    by_order = any(rank.rank_source == _BY_ORDER for rank in ranks)
    return len(numbers) == len(ranks) and not by_order and any(len(rank.steps) for rank in ranks)


def _few_enough(ranks: Sequence[OutlinedRank]) -> int:
    events = sum(rank.num_events for rank in ranks) / max(len(ranks), 1)
    return max(MIN_FULL_RANKS, round(_MAX_FULL_EVENTS / max(events, 1)))


def _said(num_ranks: int, most: int) -> str:
    return (
        f"{most:,} of {num_ranks:,} ranks analysed in full ({_RULE}; --full-ranks N for more). "
        f"Of all {num_ranks:,}: clocks, waits, late ranks, collectives, windows; "
        f"of the {most:,}: budget, kernels, operators, critical path, savings"
    )
