"""What do the traces lack, in words? Every loss becomes a warning; none is silent."""

from collections.abc import Callable, Sequence

from stepscope.run.rank import Rank

_MAX_NAMED = 4

_COUNTED: tuple[tuple[Callable[[Rank], int], str], ...] = (
    (lambda r: r.trace.quality.malformed, "events that are no valid JSON are lost"),
    (lambda r: r.trace.quality.bad_time, "events dropped for a time that is missing or no finite number"),
    (lambda r: r.trace.quality.negative_duration, "events dropped for a negative duration"),
    (
        lambda r: r.trace.quality.far_times,
        "events left out for a time that overflows or lies far outside the window of all others",
    ),
    (lambda r: r.trace.quality.repaired, "events with bad JSON were repaired"),
    (lambda r: r.trace.quality.bad_text, "names with invalid characters, replaced"),
    (lambda r: r.trace.quality.shortened, "names longer than the limit, shortened"),
    (lambda r: r.trace.quality.bad_args, "argument values of the wrong type or out of range, left out"),
    (
        lambda r: r.joins.without_launch,
        "device operations without a launch in the trace (launched before the window): "
        "they are in the window but in no recorded step",
    ),
    (lambda r: r.joins.launches_without_work, "launches without device work in the trace"),
    (lambda r: r.collectives.unanswered, "collectives asked for whose execution is not in the trace"),
    (lambda r: r.joins.reused_correlation, "launches that share a correlation id with another"),
    (
        lambda r: r.collectives.unjoined,
        "communication operations without a record: their bytes and group are unknown",
    ),
)


def quality_warnings(ranks: Sequence[Rank]) -> list[str]:
    """Return one line per kind of loss, with its count and the ranks it is largest on."""
    lines = []
    for count, what in _COUNTED:
        counts = [(count(rank), rank.rank) for rank in ranks]
        total = sum(n for n, _ in counts)
        if total:
            lines.append(f"{total:,} {what}{_where(counts)}")
    return [*cut_off(ranks), *lines] + [f"rank {r.rank}: {note}" for r in ranks for note in r.trace.quality.notes]


def cut_off(ranks: Sequence[Rank]) -> list[str]:
    """Return the line that names the traces which end too early, if any do."""
    cut = [r.rank for r in ranks if r.trace.quality.truncated]
    if not cut:
        return []
    return [f"cut off: the trace of {_named(cut)}; what was readable is used, its last recorded step is left out"]


def rank_ranges(numbers: Sequence[int]) -> str:
    """Return `0-3, 7` for [0, 1, 2, 3, 7]."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def _named(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {rank_ranges(numbers)}"


def _where(counts: list[tuple[int, int]]) -> str:
    """Return the ranks with the largest counts, ` (rank 3: 356, rank 0: 285, ...)`."""
    if len(counts) == 1:
        return ""
    worst = sorted((c for c in counts if c[0]), reverse=True)
    named = ", ".join(f"rank {rank}: {n:,}" for n, rank in worst[:_MAX_NAMED])
    return f" ({named}{', ...' if len(worst) > _MAX_NAMED else ''})"
