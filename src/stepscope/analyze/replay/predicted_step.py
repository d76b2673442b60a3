"""What would the step take with these changes, and how sure is that?"""

from collections.abc import Sequence
from dataclasses import replace

from stepscope.analyze.replay.graph import end_times, step_ends
from stepscope.analyze.replay.replay import Replay, with_host_factor
from stepscope.analyze.replay.saving import Fix, saving_of, to_step, together
from stepscope.dataclass import dataclass
from stepscope.records import once_per_record


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


def predict(
    replay: Replay, changes: Sequence[tuple[str, Fix]], *, doubt: float | None = None, step_ns: float | None = None
) -> Prediction:
    """Return the step of a run with all these changes, applied in order.

    Where the replay takes longer than the step (`step_ns`) it is brought to it, and savings with it.
    """
    whole_ns = step_ns or replay.period_ns
    all_of_them = together([fix for _, fix in changes], doubt=doubt)
    if all_of_them.change is not None:
        all_of_them = replace(all_of_them, change=once_per_record(all_of_them.change))  # asked twice of the same run
    saving = saving_of(replay, all_of_them, step_ns=whole_ns)
    scale = to_step(replay, whole_ns)
    baseline_ns = replay.period_ns * scale
    by_rank = _by_rank(replay if all_of_them.change is None else all_of_them.change(replay))
    return Prediction(
        step_ns=max(0.0, baseline_ns - saving.ns),
        low_ns=max(0.0, baseline_ns - saving.high_ns),
        high_ns=max(0.0, baseline_ns - saving.low_ns),
        baseline_ns=baseline_ns,
        rank_step_ns={rank: max(0.0, ns * scale - all_of_them.formula_ns) for rank, ns in by_rank.items()},
        changes=tuple(name for name, _ in changes),
    )


def _by_rank(replay: Replay) -> dict[int, float]:
    """Return each rank's own period over the steady steps."""
    graph = replay.graph
    ends = step_ends(graph, end_times(graph, with_host_factor(graph, replay.host_factor)))
    last = ends.shape[1] - 1
    half = max(0, last - max(1, (last + 1) // 2))
    steps = max(last - half, 1)
    ranks = enumerate(replay.shared.run.ranks)
    more_ns = replay.recurring.total_ns
    return {
        r.rank: float((ends[i, last] - ends[i, half]) / steps) + more_ns for i, r in ranks if len(replay.programs[i])
    }
