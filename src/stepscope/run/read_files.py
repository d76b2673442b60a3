"""Each file as the traces in it, or why it could not be read; all files share threads, progress and a budget."""

import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from stepscope.errors import InputError, StepscopeError
from stepscope.run.sources import Source
from stepscope.trace.cache import WriteLater, read_cached
from stepscope.trace.nccl import NSYS_REPORT, is_sqlite
from stepscope.trace.read import Budget
from stepscope.trace.table import Trace

# of memory that a rank takes however small its trace is
_BYTES_PER_RANK = 1 << 16
# Called with bytes read so far and bytes in all.
Progress = Callable[[int, int], None]


class FailedSource(NamedTuple):
    """A file that could not be read, and why."""

    source: Source
    error: StepscopeError


# a file holds the trace of one rank, or those of all ranks on a machine
ReadSource = tuple[Trace, ...] | FailedSource


def source_reader(
    sources: Sequence[Source],
    *,
    jobs: int,
    cache: bool,
    cache_folder: Path | None,
    progress: Progress | None,
    write_later: WriteLater | None = None,
) -> Callable[[Source], ReadSource]:
    """Return a function that reads one source, or gives back why it could not; `write_later` is for `read_cached`."""
    total = sum(map(size_on_disk, sources))
    budget = Budget(total)
    refuse_too_many(len(sources), budget)
    threads = max(1, jobs // len(sources))
    done: dict[Path, int] = {}

    def read(source: Source) -> ReadSource:
        def report(size_bytes: int) -> None:
            done[source.path] = size_bytes
            if progress:
                progress(sum(done.values()), total)

        try:
            is_report = source.path.name.endswith(NSYS_REPORT)
            if is_report or is_sqlite(source.path):
                from stepscope.trace.nccl import exported_report  # only where there is such a file
                from stepscope.trace.nsight import read_nsys

                export = (
                    exported_report(source.path, cache_folder=cache_folder, keep=cache) if is_report else source.path
                )
                return read_nsys(export, progress=report, budget=budget, named=source.path)
            trace = read_cached(
                source.path,
                cache_folder=cache_folder,
                enabled=cache,
                threads=threads,
                progress=report,
                budget=budget,
                write_later=write_later,
            )
        except StepscopeError as error:
            error.__cause__ = error.__context__ = None  # frames would hold what was read
            return FailedSource(source, error.with_traceback(None))
        return (trace,)

    return read


def size_on_disk(source: Source) -> int:
    """Return the bytes that a file takes, those of a sparse one without its holes."""
    try:
        status = source.path.stat()
    except OSError:  # said when it is read
        return 0
    return min(status.st_size, 512 * status.st_blocks) if stat.S_ISREG(status.st_mode) else 0


def refuse_too_many(num_files: int, budget: Budget) -> None:
    """Raise where so many files of next to nothing would take more memory than their size accounts for."""
    most = budget.limit_bytes // _BYTES_PER_RANK
    if num_files > most:
        raise InputError(
            f"{num_files:,} files are too small to be traces of ranks; at most {most:,} of this size are read at once: "
            "pass some of them, by glob"
        )
