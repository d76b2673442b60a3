"""Trace files into tables, several at once: copies of a trace count once, its parts as one, each rank has one."""

import hashlib
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from stepscope.errors import InputError, StepscopeError
from stepscope.run.sources import Source, rank_in_header
from stepscope.trace.budget import Budget
from stepscope.trace.cache import read_cached
from stepscope.trace.parts import joined, trace_id
from stepscope.trace.table import Trace

BYTES_PER_RANK = 1 << 16
"""of memory that a rank takes however small its trace is"""
Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes in all."""


def reader(
    sources: Sequence[Source], *, jobs: int, cache: bool, cache_folder: Path | None, progress: Progress | None
) -> Callable[[Source], Trace | tuple[Source, StepscopeError]]:
    """Return a function that reads one source, or gives back why it could not."""
    total = sum(map(_size_on_disk, sources))
    budget = Budget(total)
    _refuse_too_many(len(sources), budget)
    threads = max(1, jobs // len(sources))
    done: dict[Path, int] = {}

    def read(source: Source) -> Trace | tuple[Source, StepscopeError]:
        def report(size_bytes: int) -> None:
            done[source.path] = size_bytes
            if progress:
                progress(sum(done.values()), total)

        try:
            return read_cached(
                source.path,
                cache_folder=cache_folder,
                enabled=cache,
                threads=threads,
                progress=report,
                budget=budget,
            )
        except StepscopeError as error:
            return source, _without_frames(error)

    return read


def _without_frames(error: StepscopeError) -> StepscopeError:
    """Return the error without what was read until then: the frames of its traceback would keep the tables alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _size_on_disk(source: Source) -> int:
    """Return the bytes that a file takes, those of a sparse one without its holes."""
    try:
        status = source.path.stat()
    except OSError:  # said when it is read
        return 0
    return min(status.st_size, 512 * status.st_blocks) if stat.S_ISREG(status.st_mode) else 0


def _refuse_too_many(num_files: int, budget: Budget) -> None:
    """Raise where so many files of next to nothing would take more memory than their size accounts for."""
    most = budget.limit_bytes // BYTES_PER_RANK
    if num_files > most:
        raise InputError(
            f"{num_files:,} files are too small to be traces of ranks; at most {most:,} of this size are read at once: "
            "pass some of them, by glob"
        )


def sort_out(
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


def without_repeats(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    """Return each distinct trace once; copies of a file count once and are named.

    Ranks that did the same at the same time are no copies of each other: their headers differ.
    """
    alike = Counter(map(_size, traces))
    seen: dict[tuple[int, int | None, bytes], Trace] = {}
    warnings = []
    for trace in traces:
        first = seen.setdefault((*_size(trace), _digest(trace) if alike[_size(trace)] > 1 else b""), trace)
        if first is not trace:
            names = f"{Path(first.path).name} and {Path(trace.path).name}"
            warnings.append(f"{names} hold the same trace; it counts once")
    return list(seen.values()), warnings


def _size(trace: Trace) -> tuple[int, int | None]:
    return trace.num_events, rank_in_header(trace.header)


def _digest(trace: Trace) -> bytes:
    content = hashlib.blake2b("\0".join(trace.strings).encode(errors="surrogatepass"), digest_size=16)
    for column in ("ts_ns", "dur_ns", "name", "tid"):
        content.update(trace[column].tobytes())
    return content.digest()


def with_parts_joined(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    """Return traces that lie in several files as one, and a line for each."""
    parts: dict[object, list[Trace]] = {}
    for trace in traces:
        of = trace_id(trace)
        parts.setdefault((rank_in_header(trace.header), of) if of else id(trace), []).append(trace)
    lines = [
        f"{', '.join(Path(t.path).name for t in several)} hold parts of one trace and are read as one"
        for several in parts.values()
        if len(several) > 1
    ]
    return [joined(several) if len(several) > 1 else several[0] for several in parts.values()], lines


def refuse_double_ranks(traces: list[Trace], known: list[tuple[int, str]]) -> None:
    """Raise where two different files are of the same rank: two runs, or two windows, in one place."""
    owner: dict[int, str] = {}
    for trace, (rank, source) in zip(traces, known, strict=True):
        if rank in owner:
            raise InputError(
                f"two traces are of rank {rank} (by {source}): {owner[rank]} and {trace.path}; "
                "two runs or two windows lie together: pass one of them, by folder or by glob"
            )
        owner[rank] = trace.path
