"""A run of any number of ranks in bounded memory: every rank is read, and so many of them are kept in full.

    each file -> its rank's outline        independent tasks, here or on a cluster; tables are dropped after each
    all outlines -> clocks, waits          which ranks are late, which differ (`choice.py`)
    those ranks -> tables, again           everything else is of these

Up to so many ranks nothing of this happens. Nor where ranks cannot be told one by one: a rank's number, or its
steps, is known only from all files together, a file holds several ranks, or several files hold one.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import cpu_count
from pathlib import Path

from stepscope.analyze.ranks.outlined_rank import OutlinedRank
from stepscope.analyze.sampled.choice import RULE, chosen_indices
from stepscope.analyze.sampled.outline_file import BY_ORDER, outline_file, with_shared_groups
from stepscope.run.aligned import aligned
from stepscope.run.load import (
    MAX_FULL_RANKS,
    MAX_JOBS,
    Run,
    load_sources,
    run_description,
    run_name,
)
from stepscope.run.reading.each_file import Progress, refuse_too_many, size_on_disk
from stepscope.run.sources import Source, Sources, find_sources
from stepscope.trace.budget import Budget
from stepscope.trace.freed_memory import return_freed
from stepscope.trace.nsight.magic import is_sqlite

MAX_FULL_EVENTS = 10_000_000
"""of all ranks in full together: some 1.6 GB"""
MIN_FULL_RANKS = 16
Arguments = tuple[str, str | None, str | None, bool, int]
"""of `outline_file`"""
OutlineFiles = Callable[[Sequence[Arguments]], list[OutlinedRank | None]]
"""Called with what `outline_file` takes for each file; gives what it gives, in the same order."""
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

    Of more than `full_ranks` ranks so many are in `ranks`, chosen by a rule that `warnings` states, and what is kept of
    all of them is in `everyone`; by default of more than 128, and fewer where their traces are large. The ranks in
    `wanted` are among them. `outline_files` does the reading of each rank elsewhere.
    """
    sources = find_sources(given)
    name = run_name(given, sources.folder)
    most = MAX_FULL_RANKS if full_ranks is None else max(full_ranks, 2)
    jobs = min(jobs or cpu_count() or 1, MAX_JOBS)
    everyone: list[OutlinedRank] = []
    if len(sources.files) > most and not any(map(_is_nsight, sources.files)):
        outlines = _outlines(sources, jobs, cache, cache_folder, progress, outline_files)
        found = sorted(with_shared_groups([one for one in outlines if one is not None]), key=lambda one: one.rank)
        also = [rank.rank for rank in found if rank.rank in wanted]
        most = max(most if full_ranks is not None else min(most, _few_enough(found)), len(also) + 1)
        if len(found) > most and _told_one_by_one(found):
            everyone = found
            sources = _with_chosen(sources, outlines, everyone, most, also)
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
    """Return what is kept of the rank in each file, None where a file cannot be read."""
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
    """Return the outline of every file, read on this machine."""
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
    """Return whether each rank's number and steps are known without the others, and each is in one file."""
    numbers = {rank.rank for rank in ranks}
    by_order = any(rank.rank_source == BY_ORDER for rank in ranks)
    return len(numbers) == len(ranks) and not by_order and any(len(rank.steps) for rank in ranks)


def _few_enough(ranks: Sequence[OutlinedRank]) -> int:
    """Return how many ranks of this size are kept in full."""
    events = sum(rank.num_events for rank in ranks) / max(len(ranks), 1)
    return max(MIN_FULL_RANKS, round(MAX_FULL_EVENTS / max(events, 1)))


def _with_chosen(
    sources: Sources,
    outlines: Sequence[OutlinedRank | None],
    everyone: Sequence[OutlinedRank],
    most: int,
    wanted: Collection[int],
) -> Sources:
    """Return the files of the ranks to read in full, and those that could not be read, which is said again."""
    description = run_description(sources.folder)[0]
    shared = aligned(Run("", tuple(everyone), description=description))
    chosen = {everyone[index].trace.path for index in chosen_indices(shared, most, wanted)}
    kept = [
        source
        for source, outline in zip(sources.files, outlines, strict=True)
        if outline is None or outline.trace.path in chosen
    ]
    return replace(sources, files=tuple(kept))


def _said(num_ranks: int, most: int) -> str:
    return (
        f"{most:,} of {num_ranks:,} ranks analysed in full ({RULE}; --full-ranks N for more). "
        f"Of all {num_ranks:,}: clocks, waits, late ranks, collectives, windows; "
        f"of the {most:,}: budget, kernels, operators, critical path, savings"
    )
