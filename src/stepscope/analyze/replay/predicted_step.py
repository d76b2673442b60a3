"""What would the step take with these changes, and how sure is that?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyze.replay.changes import Change
from stepscope.analyze.replay.graph import CircularWaits, end_times, steady_period_ns, step_ends
from stepscope.analyze.replay.replay import Replay, rebuilt, with_host_factor

MODEL_ERROR = 0.08
"""of the step: what a replay is wrong by, about, however good its inputs"""
_OTHER_FACTORS = (0.75, 1.25)
"""of the host factor, where the step times do not determine it"""


@dataclass(frozen=True)
class Prediction:
    """The step with some changes made."""

    step_ns: float
    low_ns: float
    high_ns: float
    baseline_ns: float
    """the replay without the changes"""
    rank_step_ns: dict[int, float]
    """of the ranks that recorded the replayed steps"""
    changes: tuple[str, ...]


def predict(replay: Replay, changes: Sequence[tuple[str, Change]], *, doubt: float = 0.15) -> Prediction:
    """Return the step of a run with all these changes, applied in order."""
    changed = replay
    for _, change in changes:
        changed = change(changed)
    saving = replay.period_ns - changed.period_ns

    def together(start: Replay) -> Replay:
        for _, change in changes:
            start = change(start)
        return start

    low, high = saving_range(replay, together, saving, doubt=doubt, floor_ns=MODEL_ERROR * replay.period_ns)
    return Prediction(
        step_ns=changed.period_ns,
        low_ns=max(0.0, replay.period_ns - high),
        high_ns=replay.period_ns - low,
        baseline_ns=replay.period_ns,
        rank_step_ns=_by_rank(changed),
        changes=tuple(name for name, _ in changes),
    )


def saving_range(
    replay: Replay | None, change: Change | None, saving_ns: float, *, doubt: float, floor_ns: float
) -> tuple[float, float]:
    """Return the interval of a saving: the model's own error, and what the profiler's unknown cost allows."""
    half = max(doubt * saving_ns, floor_ns)
    low, high = saving_ns - half, saving_ns + half
    if replay is not None and change is not None and not replay.factor_identified:
        for other in _OTHER_FACTORS:
            factor = float(np.clip(replay.host_factor * other, 0.3, 1.0))
            try:
                period = _period(replace(replay, host_factor=factor))
                saved = period - change(_with_factor(replay, factor)).period_ns
            except CircularWaits:
                continue
            low, high = min(low, saved), max(high, saved)
    return max(0.0, low), max(0.0, high)


def _with_factor(replay: Replay, factor: float) -> Replay:
    return rebuilt(replace(replay, host_factor=factor), replay.programs)


def _period(replay: Replay) -> float:
    return steady_period_ns(replay.graph, end_times(replay.graph, with_host_factor(replay.graph, replay.host_factor)))


def _by_rank(replay: Replay) -> dict[int, float]:
    """Return each rank's own period over the steady steps."""
    graph = replay.graph
    ends = step_ends(graph, end_times(graph, with_host_factor(graph, replay.host_factor)))
    last = ends.shape[1] - 1
    half = max(0, last - max(1, (last + 1) // 2))
    steps = max(last - half, 1)
    ranks = enumerate(replay.shared.run.ranks)
    return {r.rank: float((ends[i, last] - ends[i, half]) / steps) for i, r in ranks if len(replay.programs[i])}
