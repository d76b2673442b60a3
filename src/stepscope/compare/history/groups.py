"""Runs grouped by commit, configuration, host or device, each group with its middle and its range."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from stepscope.compare.history.newest import in_time
from stepscope.compare.history.row import HistoryRow
from stepscope.dataclass import dataclass

KINDS = ("commit", "config", "host", "device")


@dataclass(frozen=True)
class Group:
    """Runs that have one thing in common."""

    name: str
    runs: int
    step_ms: float | None
    """median over runs"""
    min_step_ms: float | None
    max_step_ms: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    """largest of all runs"""
    findings: tuple[str, ...]
    """the three most frequent"""


def groups(rows: Sequence[HistoryRow], by: str) -> list[Group]:
    """Return the groups in the order of their first run; a run on several hosts is in each of theirs."""
    found: dict[str, list[HistoryRow]] = {}
    for row in in_time(rows):
        for name in _names(row, by):
            found.setdefault(name, []).append(row)
    return [_group(name, several) for name, several in found.items()]


def _names(row: HistoryRow, by: str) -> tuple[str, ...]:
    if by == "host":
        return row.hosts or ("unknown",)
    value = {"commit": row.commit, "config": row.config, "device": row.device}[by]
    return (value or "unknown",)


def _group(name: str, rows: Sequence[HistoryRow]) -> Group:
    steps = [row.step_ms for row in rows if row.step_ms is not None]
    used = [row.mfu for row in rows if row.mfu is not None]
    memory = [row.peak_memory_bytes for row in rows if row.peak_memory_bytes is not None]
    frequent = Counter(finding for row in rows for finding, _ in row.findings).most_common(3)
    return Group(
        name=name,
        runs=len(rows),
        step_ms=median(steps) if steps else None,
        min_step_ms=min(steps, default=None),
        max_step_ms=max(steps, default=None),
        mfu=median(used) if used else None,
        peak_memory_bytes=max(memory, default=None),
        findings=tuple(finding for finding, _ in frequent),
    )
