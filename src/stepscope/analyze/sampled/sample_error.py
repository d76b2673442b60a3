"""How far are the ranks in full from all ranks? Measured on what is known of all of them: their windows and waits."""

from collections.abc import Callable

import numpy as np

from stepscope.analyze.rank_view import RankWindow
from stepscope.analyze.ranks.collectives import rank_wait
from stepscope.analyze.ranks.lateness import common_steps, late_ranks
from stepscope.analyze.ranks.outlined_rank import window_of
from stepscope.run.aligned import AlignedRun
from stepscope.run.quality import rank_ranges
from stepscope.trace.table import Int64s

_MEASURES: tuple[tuple[str, Callable[[RankWindow], float | None]], ...] = (
    ("compute", lambda v: v.window.compute.total_ns if v.window else None),
    ("exposed communication", lambda v: v.window.exposed_comm.total_ns if v.window else None),
    ("waiting", lambda v: v.wait.wait_ns if v.wait else None),
    ("idle", lambda v: v.window.idle_ns if v.window else None),
)


def rank_windows(shared: AlignedRun) -> tuple[RankWindow, ...]:
    """Return window and waits of each rank, in full or not."""
    windows = [window_of(rank) for rank in shared.run.ranks]
    return tuple(
        RankWindow(rank, window, rank_wait(shared, index, window) if window else None)
        for index, (rank, window) in enumerate(zip(shared.run.ranks, windows, strict=True))
    )


def sample_lines(shared: AlignedRun, *, replayed: Int64s | None) -> list[str]:
    """Return by how much the means of the ranks in full differ from those of all ranks, which ranks are late beyond
    them, and which steps the replay is of.
    """
    in_full = {rank.rank for rank in shared.run.ranks}
    return [*_differences(shared, in_full), *_late_beyond(shared, in_full), *_replayed(shared, replayed)]


def _differences(shared: AlignedRun, in_full: set[int]) -> list[str]:
    every = rank_windows(shared.whole)
    window_ns = float(np.mean([view.window.window_ns for view in every if view.window] or [0]))
    parts = []
    for name, measure in _MEASURES:
        known = [(view.rank.rank in in_full, ns) for view in every if (ns := measure(view)) is not None]
        if window_ns and any(some for some, _ in known):
            difference = np.mean([ns for some, ns in known if some]) - np.mean([ns for _, ns in known])
            parts.append(f"{name} {100 * difference / window_ns:+.2f}")
    of = f"mean of the {len(in_full):,} ranks in full less that of all {len(every):,}"
    return [f"{of}, in % of the window: {', '.join(parts)}"] if parts else []


def _late_beyond(shared: AlignedRun, in_full: set[int]) -> list[str]:
    beyond = [late.rank for late in late_ranks(shared.whole) if late.rank not in in_full]
    if not beyond:
        return []
    return [
        f"late by their own times too, but not among the ranks in full, so without a cause: rank "
        f"{rank_ranges(beyond)}; --full-ranks takes more of them in"
    ]


def _replayed(shared: AlignedRun, replayed: Int64s | None) -> list[str]:
    recorded = len(common_steps(shared.run.ranks))
    if replayed is None or len(replayed) >= recorded:
        return []
    return [f"savings and critical path are of {len(replayed):,} of the {recorded:,} recorded steps"]
