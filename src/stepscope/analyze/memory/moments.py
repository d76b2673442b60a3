"""What did a rank hold at every moment of the window, by category and phase?

The curves behind the peak: what is changed in one category changes each of them, and the peak may move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepscope.analyze.memory.categories import CATEGORIES, CategorisedBlocks, categorised
from stepscope.analyze.memory.events import MemoryEvents, blocks_of, memory_events
from stepscope.analyze.memory.kept import FromBefore
from stepscope.analyze.step.phases import Passes, Phase, Phases
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.trace.table import Int64s

Curves = Mapping[str, Int64s | None]
"""bytes by category after each event; None where a category is unknown"""

_OF_PURPOSE = {"temporaries": "temporary"}


@dataclass(frozen=True, eq=False, repr=False)
class Moments(ArrayRecord):
    """Memory after each event on one device of one rank."""

    phase: Phases | None
    """of training; None where nothing tells it"""
    by_category: Curves
    """sums to what is allocated; None where a category is unknown and part of another"""
    on_device: bool
    """False where the host's own memory was recorded"""
    is_whole: bool = True
    """False where what was there before the profiler is not in it"""

    @property
    def allocated_bytes(self) -> Int64s:
        """Return the sum of all categories."""
        return np.sum([curve for curve in self.by_category.values() if curve is not None], axis=0, dtype=np.int64)

    def most(self, category: str) -> int | None:
        """Return the most that was held of a category, None where it is unknown."""
        curve = self.by_category.get(category)
        return None if curve is None else int(curve.max(initial=0))


def rank_moments(run: Run, rank: Rank, found: Passes) -> Moments | None:
    """Return the moments of a rank; None without memory events, or where their blocks or totals are unknown."""
    events, older = held_events(run, rank)
    blocks = blocks_of(events) if events else None
    if events is None or blocks is None or events.before_bytes is None:
        return None
    categories = categorised(events, blocks, found, rank.steps)
    curves = category_curves(events, categories, older)
    phase = found.at(events.time_ns, events.thread) if found.known else None
    return Moments(phase, curves, on_device=not events.on_host, is_whole=older.is_known)


def snapshot_moments(by_purpose: Mapping[str, tuple[int, ...] | None], phases: Sequence[str]) -> Moments | None:
    """Return the moments of a snapshot's timeline, None where it has no history."""
    if not any(by_purpose.values()):
        return None
    named = {_OF_PURPOSE.get(name, name): curve for name, curve in by_purpose.items()}
    curves = {name: None if curve is None else np.array(curve, np.int64) for name, curve in named.items()}
    return Moments(np.array([Phase[name.upper()] for name in phases], np.uint8), curves, on_device=True)


def category_curves(events: MemoryEvents, categories: CategorisedBlocks, older: FromBefore) -> Curves:
    """Return bytes of each category after each event; `kept` and its parts only where the totals were recorded."""
    curves = dict(zip(CATEGORIES, categories.over_time(len(events)), strict=False))
    return {**curves} if categories.kept_bytes is None else older.split(curves, categories.kept_bytes)


def held_events(run: Run, rank: Rank) -> tuple[MemoryEvents | None, FromBefore]:
    """Return the memory events of a rank, and what is known of what was there before them.

    What the job counted on a rank without a device is older than the profiler's own totals: it is put below them.
    """
    events, older = memory_events(rank), from_before(run, rank.rank)
    if events is None or not events.on_host:
        return events, older
    counted = (older.weights_bytes or 0) + (older.optimizer_bytes or 0) + (older.communication_bytes or 0)
    return events.on_top_of(counted), replace(older, seen_whole=False)


def from_before(run: Run, rank: int) -> FromBefore:
    """Return what the job itself counted of a rank's weights, optimizer state and buckets, the latest count of each."""
    edges = [edge.bytes_by for edge in run.beside.memory if edge.rank == rank]
    counted = {name: size for edge in edges for name, size in edge.items()}
    weights_bytes = counted.get("parameters", parameter_bytes(run))
    return FromBefore(weights_bytes, counted.get("optimizer"), counted.get("communication"))


def parameter_bytes(run: Run) -> int | None:
    """Return the bytes of one rank's parameters, from what the job wrote about its model."""
    model = run.description.get("model")
    said = [model.get(name) for name in ("bytes", "parameters", "local_parameters")] if isinstance(model, dict) else []
    numbers = [n for n in said if isinstance(n, int) and n > 0]
    return numbers[0] * numbers[2] // numbers[1] if len(numbers) == 3 else None
