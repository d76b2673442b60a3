"""Which ranks are late in the training, by everything that is known: the profiled steps and all logged ones.

Five profiled steps name a rank and say why it is late; the steps without the profiler, of which there are many more,
say whether and by how much:

    late in the trace    late in the log    the log can tell
    yes                  yes                yes                 late, by what the log says
    yes                  no                 yes                 not late: it was so in the window alone, or the log has
                                                                too few steps to bear it out; a note says so
    no                   yes                yes                 late, the cause by the regions of the log
    yes                  -                  no                  late, by what the trace says

The log can tell where the wait for the others' gradients is measured on every rank, and is the only wait: where ranks
also wait elsewhere their own times by the log are longer than those in the trace. A rank that is late in some steps
only (it alone saves checkpoints) shows in what recurs (`recurring.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ranks.lateness import common_steps, own_times
from stepscope.analyze.ranks.log_stragglers import WAITING, LateRank, lateness
from stepscope.analyze.ranks.stragglers import Straggler
from stepscope.analyze.step.recurring import DATA_CAUSES, Recurring
from stepscope.analyze.step.training_step import TrainingStep
from stepscope.dataclass import dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.run.step_log import StepLog
from stepscope.stats.middle import median
from stepscope.stats.robust import num_stretches
from stepscope.units import ms

_ALL_STEPS = 1 << 40
_MIN_STEPS_TO_CLEAR = 10
_HIDDEN_WAIT = 0.5
"""of the lateness: own times by the log that are longer by more hold waits"""
_MIN_RECURRING_SHARE = 0.05
_MIN_EVENTS = 3
_MIN_RECURRING_SCORE = 3.0
_MAIN_CAUSE = 0.5


@dataclass(frozen=True)
class LateRanks:
    """The late ranks, and how late ranks are by the log where it decides."""

    stragglers: tuple[Straggler, ...]
    late_ns: dict[int, float]
    """by rank, of those that the trace or the log names: lateness per step without the profiler"""
    notes: tuple[str, ...]


def training_stragglers(
    shared: AlignedRun, traced: Sequence[Straggler], *, logs: Sequence[StepLog], training: TrainingStep | None
) -> LateRanks:
    """Return the late ranks by trace and logs together, the latest first."""
    by_log = {late.rank: late for late in _told(shared, traced, logs)}
    recurring = _recurring_late(training)
    found, notes = [], []
    late_ns: dict[int, float] = {}
    for s in traced:
        log = by_log.get(s.rank)
        if log is not None:
            late_ns[s.rank] = max(log.late_ns, 0)
        if log is None or log.is_late():
            found.append(s if log is None else _as_logged(s, log))
        elif s.rank in recurring:
            found.append(replace(s, late_ns_per_step=recurring[s.rank].late_ns_per_step))
        else:
            notes.append(_cleared(s, log))
    named = {s.rank for s in found}
    for rank, log in by_log.items():
        if rank not in named and log.is_late():
            found.append(_from_log(log, logs))
            late_ns[rank] = log.late_ns
    named = {s.rank for s in found}
    found += [s for rank, s in recurring.items() if rank not in named]
    return LateRanks(tuple(sorted(found, key=lambda s: -s.late_ns_per_step)), late_ns, tuple(notes))


def cleared_by_logs(shared: AlignedRun, rank: int, late_ns: float, logs: Sequence[StepLog]) -> bool:
    """Return whether the logs can tell that a rank is not late, which the trace has so much later than the others."""
    traced = Straggler(rank, "host", late_ns, 0, 0, 0.0, 1.0, {})
    told = [late for late in _told(shared, [traced], logs) if late.rank == rank]
    return bool(told) and not told[0].is_late()


def _told(shared: AlignedRun, traced: Sequence[Straggler], logs: Sequence[StepLog]) -> list[LateRank]:
    """Return the lateness of each rank by the logs, none where they cannot tell."""
    shared = shared.whole
    if len(logs) < 2 or {log.rank for log in logs} != {r.rank for r in shared.run.ranks}:
        return []
    if any(np.isnan(log.column(WAITING)).all() for log in logs):
        return []
    judged = lateness(logs, window_steps=_ALL_STEPS)
    own = own_times(shared) if traced else None
    if own is None:
        return judged
    by_rank = {r.rank: float(row.mean()) for r, row in zip(shared.run.ranks, own, strict=True)}
    logged = _logged_own_ns(shared, logs) or {j.rank: j.own_ns for j in judged}
    return [] if any(_waits_elsewhere(s, logged, by_rank) for s in traced) else judged


def _logged_own_ns(shared: AlignedRun, logs: Sequence[StepLog]) -> dict[int, float]:
    """Return the mean own time of each rank by the log in the steps of the trace, none where it lacks one of them.

    The same steps had the same load: where the machine was busier outside the window, all own times there are longer.
    """
    numbers = common_steps(shared.run.ranks)
    found = {}
    for log in logs:
        inside = np.isin(log.step, numbers)
        own = (log.dur_ns - log.column(WAITING))[inside]
        if len(own) < len(numbers) or np.isnan(own).any():
            return {}
        found[log.rank] = float(own.mean())
    return found


def _waits_elsewhere(s: Straggler, logged_ns: dict[int, float], traced_ns: dict[int, float]) -> bool:
    """Return whether the others' own times by the log hold the wait for the rank that the trace shows late."""
    others = [(logged_ns[rank], traced_ns[rank]) for rank in logged_ns if rank != s.rank]
    beyond = [logged - traced for logged, traced in others if not np.isnan(traced)]
    return bool(beyond) and median(beyond) > _HIDDEN_WAIT * s.late_ns_per_step


def _as_logged(s: Straggler, log: LateRank) -> Straggler:
    return replace(
        s,
        late_ns_per_step=log.late_ns,
        steps_late=log.steps_late,
        num_steps=log.num_steps,
        score=log.score,
        slowdown=log.slowdown,
    )


def _from_log(log: LateRank, logs: Sequence[StepLog]) -> Straggler:
    """Return a straggler that only the log shows; late input is told by its region, the rest is the host's."""
    late_ns = log.late_ns
    data = {each.rank: _typical_ns(each, "data_loading") for each in logs}
    excess = data[log.rank] - median([ns for rank, ns in data.items() if rank != log.rank])
    cause = "data" if excess >= _MAIN_CAUSE * late_ns else "host"
    return Straggler(
        rank=log.rank,
        cause=cause,
        late_ns_per_step=late_ns,
        steps_late=log.steps_late,
        num_steps=log.num_steps,
        score=log.score,
        slowdown=log.slowdown,
        evidence={"data": max(excess, 0.0)},
    )


def _typical_ns(log: StepLog, region: str) -> float:
    times: npt.NDArray[np.float64] = np.nan_to_num(log.column(f"regions.{region}.ns"))[log.unprofiled]
    return median(times) if len(times) else 0.0


def _cleared(s: Straggler, log: LateRank) -> str:
    interval = f"{ms(log.low_ns):.1f} to {ms(log.high_ns):.1f}"
    tells = log.num_steps >= _MIN_STEPS_TO_CLEAR or log.high_ns < s.late_ns_per_step
    so = "it is no straggler" if tells else "too few to call it late; a longer recording would tell"
    return (
        f"rank {s.rank} was {ms(s.late_ns_per_step):.1f} ms late per step in the {s.num_steps} profiled steps, but "
        f"{ms(log.late_ns):.1f} ms ({interval}) in the {log.num_steps} steps without the profiler: {so}"
    )


def _recurring_late(training: TrainingStep | None) -> dict[int, Straggler]:
    """Return the ranks that are late in some steps, because something recurs there and not on the others."""
    if training is None or len(training.recurring.ranks) < 2:
        return {}
    r = training.recurring
    late = {rank: ns for rank, ns in r.late_ns().items() if ns >= _MIN_RECURRING_SHARE * training.mean_ns}
    return {rank: _recurring_straggler(r, rank, ns, training.mean_ns) for rank, ns in late.items() if _certain(r, rank)}


def _beyond_others(r: Recurring, rank: int) -> npt.NDArray[np.float64]:
    own, at = r.excess_ns.sum(axis=0), r.ranks.index(rank)
    return np.asarray(own[at] - np.median(np.delete(own, at, axis=0), axis=0))


def _certain(r: Recurring, rank: int) -> bool:
    x = _beyond_others(r, rank)
    events = num_stretches(x > 0)
    if events < _MIN_EVENTS:
        return False
    # Steps of one stretch (another job for a while) tell as much as one.
    steps_each = int((x > 0).sum()) / events
    error = float(x.std(ddof=1)) / sqrt(len(x) / steps_each)
    return float(x.mean()) >= _MIN_RECURRING_SCORE * error > 0


def _recurring_straggler(r: Recurring, rank: int, late_ns: float, mean_ns: float) -> Straggler:
    x, at = _beyond_others(r, rank), r.ranks.index(rank)
    data_ns = sum(float(r.rank_ns(c)[at]) for c in DATA_CAUSES)
    error = float(x.std(ddof=1)) / sqrt(len(x))
    return Straggler(
        rank=rank,
        cause="data" if data_ns >= _MAIN_CAUSE * late_ns else "host",
        late_ns_per_step=late_ns,
        steps_late=int((x > 0).sum()),
        num_steps=len(x),
        score=round(float(x.mean()) / error, 2),
        slowdown=mean_ns / max(mean_ns - late_ns, 1.0),
        evidence={c: float(r.rank_ns(c)[at]) for c in r.causes},
    )
