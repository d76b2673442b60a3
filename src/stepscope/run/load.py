"""Files into one `Run`: find them, read them on all cores, know whose they are, say what is missing."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.errors import InputError, StepscopeError
from stepscope.run.quality import quality_warnings, rank_ranges
from stepscope.run.rank import Rank, rank_of_trace
from stepscope.run.sources import Source, assign_ranks, find_sources, rank_in_header
from stepscope.run_folder import RUN_JSON
from stepscope.trace.cache import read_cached
from stepscope.trace.table import Trace

Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes in all."""


@dataclass(frozen=True)
class Run:
    """All ranks of one job that could be read."""

    name: str
    ranks: tuple[Rank, ...]
    """by rank number"""
    description: dict[str, Any] = field(default_factory=dict)
    """`run.json`, empty for a job recorded by somebody else"""
    unreadable: tuple[str, ...] = ()
    """one line per rank that could not be read at all"""
    warnings: tuple[str, ...] = ()

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks in the job, None where no file says it."""
        said = [r.distributed.get("world_size") for r in self.ranks] + [self.description.get("world_size")]
        known = [n for n in said if isinstance(n, int)]
        return max(known) if known else (1 if len(self.ranks) == 1 and not self.unreadable else None)


def load(
    given: str | Path | Sequence[str | Path],
    *,
    jobs: int | None = None,
    cache: bool = True,
    cache_folder: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Return the run in a file, a folder, a glob or a list of them.

    `jobs` is the number of files read at once (all cores by default); a single file is parsed on that many
    threads. A rank that cannot be read is named in `unreadable`; if none can, that is an `InputError`.
    """
    sources, folder = find_sources(given)
    jobs = jobs or os.cpu_count() or 1
    read = _reader(sources, jobs=jobs, cache=cache, cache_folder=cache_folder, progress=progress)
    with ThreadPoolExecutor(max_workers=min(jobs, len(sources))) as pool:
        results = list(pool.map(read, sources))
        traces, unreadable, warnings = _sort_out(results)
        traces, repeated = _without_repeats(traces)
        known = assign_ranks([(Path(t.path).name, rank_in_header(t.header)) for t in traces])
        _refuse_double_ranks(traces, known)
        ranks = list(pool.map(lambda pair: rank_of_trace(pair[0], rank=pair[1][0], rank_source=pair[1][1]),
                              zip(traces, known, strict=True)))  # fmt: skip
    ranks.sort(key=lambda r: r.rank)
    run = Run(
        name=_name(given, folder),
        ranks=tuple(ranks),
        description=_description(folder),
        unreadable=tuple(unreadable),
    )
    return _with_warnings(run, [*warnings, *repeated])


def _reader(
    sources: list[Source], *, jobs: int, cache: bool, cache_folder: Path | None, progress: Progress | None
) -> Callable[[Source], Trace | tuple[Source, StepscopeError]]:
    """Return a function that reads one source, or gives back why it could not."""
    total = sum(s.path.stat().st_size for s in sources if s.path.is_file())
    threads = max(1, jobs // len(sources))
    done: dict[Path, int] = {}

    def read(source: Source) -> Trace | tuple[Source, StepscopeError]:
        def report(size_bytes: int) -> None:
            done[source.path] = size_bytes
            if progress:
                progress(sum(done.values()), total)

        try:
            return read_cached(source.path, cache_folder=cache_folder, enabled=cache, threads=threads, progress=report)
        except StepscopeError as error:
            return source, error

    return read


def _sort_out(
    results: list[Trace | tuple[Source, StepscopeError]],
) -> tuple[list[Trace], list[str], list[str]]:
    """Return traces, lines for ranks that could not be read, and lines for files that are no traces."""
    traces = [r for r in results if isinstance(r, Trace)]
    failed = [r for r in results if not isinstance(r, Trace)]
    if not traces:
        if len(failed) == 1:
            raise failed[0][1]
        raise InputError(f"none of {len(failed)} files could be read; the first: {failed[0][1]}") from failed[0][1]
    unreadable = [str(error) for source, error in failed if source.claimed]
    left_out = [f"left out, not a trace of a rank: {error}" for source, error in failed if not source.claimed]
    return traces, unreadable, left_out


def _without_repeats(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    """Return each distinct trace once; the same file under two names counts once and is named."""
    seen: dict[tuple[int, int, bytes], Trace] = {}
    warnings = []
    for trace in traces:
        key = (trace.raw_bytes, trace.num_events, _digest(trace))
        if key in seen:
            names = f"{Path(seen[key].path).name} and {Path(trace.path).name}"
            warnings.append(f"{names} hold the same trace; it counts once")
        else:
            seen[key] = trace
    return list(seen.values()), warnings


def _digest(trace: Trace) -> bytes:
    return hashlib.blake2b(trace["ts_ns"].tobytes(), digest_size=16).digest()


def _refuse_double_ranks(traces: list[Trace], known: list[tuple[int, str]]) -> None:
    """Raise where two different files are of the same rank: two runs, or two windows, in one place."""
    owner: dict[int, str] = {}
    for trace, (rank, source) in zip(traces, known, strict=True):
        if rank in owner:
            raise InputError(
                f"expected one trace per rank, found two of rank {rank} (by {source}): {owner[rank]} and {trace.path}; "
                "two runs or two windows lie together: pass one of them, by folder or by glob"
            )
        owner[rank] = trace.path


def _name(given: str | Path | Sequence[str | Path], folder: Path | None) -> str:
    if folder is not None:
        return folder.resolve().name
    first = given if isinstance(given, str | Path) else given[0]
    return Path(first).name


def _description(folder: Path | None) -> dict[str, Any]:
    """Return `run.json` of a run folder, empty where there is none or it is no object."""
    path = folder / RUN_JSON if folder else None
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _with_warnings(run: Run, warnings: list[str]) -> Run:
    world = run.world_size
    present = {r.rank for r in run.ranks}
    missing = [n for n in range(world or 0) if n not in present]
    lines = [*warnings, *(f"rank lost: {line}" for line in run.unreadable)]
    if missing:
        lines.append(f"ranks missing: {rank_ranges(missing)} of {world}; what they did is unknown")
    guessed = [r.rank for r in run.ranks if r.rank_source == "order"]
    if guessed and len(run.ranks) > 1:
        lines.append(f"rank numbers of {rank_ranges(guessed)} are by order: neither the file nor its name says them")
    lines += quality_warnings(run.ranks)
    return Run(run.name, run.ranks, run.description, run.unreadable, tuple(lines))
