"""Which of the traces are ranks of one job? Copies count once, parts are joined, what is no trace is left out."""

from collections import Counter
from pathlib import Path

from stepscope.digest import Digest
from stepscope.errors import InputError
from stepscope.run.imports.second_recording import process_of
from stepscope.run.reading.each_file import FailedSource, ReadSource
from stepscope.run.sources import rank_in_header
from stepscope.trace.table import Trace


def sorted_out(results: list[ReadSource]) -> tuple[list[Trace], list[str], list[str]]:
    """Return traces, lines for ranks that could not be read, and lines for files that are no traces."""
    traces = [trace for r in results if not isinstance(r, FailedSource) for trace in r]
    failed = [r for r in results if isinstance(r, FailedSource)]
    if not traces:
        if len(failed) == 1:
            raise failed[0].error
        first = failed[0].error
        raise InputError(f"none of {len(failed)} files could be read; the first: {first}") from first
    unreadable = [str(error) for source, error in failed if source.claimed]
    left_out = [f"left out, not a trace of a rank: {error}" for source, error in failed if not source.claimed]
    return traces, unreadable, left_out


def without_repeats(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    """Return each distinct trace once; copies of a file count once and are named.

    Ranks that did the same at the same time are no copies of each other: their headers differ.
    """
    alike = Counter(map(_size, traces))
    seen: dict[tuple[int, int | None, int | None, str], Trace] = {}
    warnings = []
    for trace in traces:
        first = seen.setdefault((*_size(trace), _digest(trace) if alike[_size(trace)] > 1 else ""), trace)
        if first is not trace:
            names = f"{Path(first.path).name} and {Path(trace.path).name}"
            warnings.append(f"{names} hold the same trace; it counts once")
    return list(seen.values()), warnings


def _size(trace: Trace) -> tuple[int, int | None, int | None]:
    return trace.num_events, rank_in_header(trace.header), process_of(trace)


def _digest(trace: Trace) -> str:
    content = Digest("\0".join(trace.strings).encode(errors="surrogatepass"))
    for column in ("ts_ns", "dur_ns", "name", "tid"):
        content.add(trace[column].tobytes())
    return content.text()


def with_parts_joined(traces: list[Trace]) -> tuple[list[Trace], list[str]]:
    """Return traces that lie in several files as one, and a line for each."""
    if len(traces) < 2:
        return traces, []
    from stepscope.trace.parts import joined, trace_id  # one trace has no other part

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
