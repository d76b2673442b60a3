"""How far are the ranks in full from all ranks? Measured on what is known of all of them: their windows and waits."""

from collections.abc import Callable

import numpy as np

from stepscope.analyze.rank_view import RankWindow
from stepscope.analyze.ranks.collectives import rank_wait
from stepscope.analyze.ranks.lateness import late_ranks
from stepscope.analyze.sampled.outlined_rank import window_of
from stepscope.run.aligned import AlignedRun
from stepscope.run.quality import rank_ranges

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


def sample_lines(shared: AlignedRun) -> list[str]:
    """Return by how much the means of the ranks in full differ from those of all ranks, and late ranks beyond them."""
    every, in_full = rank_windows(shared.whole), {rank.rank for rank in shared.run.ranks}
    parts = []
    for name, measure in _MEASURES:
        known = [(view.rank.rank in in_full, ns) for view in every if (ns := measure(view)) is not None]
        window = np.mean([view.window.window_ns for view in every if view.window] or [0])
        if known and window:
            of_some, of_all = np.mean([ns for some, ns in known if some] or [np.nan]), np.mean([ns for _, ns in known])
            parts.append(f"{name} {100 * (of_some - of_all) / window:+.2f}")
    lines = []
    if parts:
        lines.append(
            f"mean of the {len(in_full):,} ranks in full less that of all {len(every):,}, in % of the window: "
            f"{', '.join(parts)}"
        )
    beyond = [late.rank for late in late_ranks(shared.whole) if late.rank not in in_full]
    if beyond:
        lines.append(
            f"late by their own times too, but not among the ranks in full, so without a cause: rank "
            f"{rank_ranges(beyond)}; --full-ranks takes more of them in"
        )
    return lines
