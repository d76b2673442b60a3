"""Which ranks make the others wait, how much, how often, and why?

Own times and waits show which rank is late and by how much; the reason is what the late rank does and
the others do not.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, reduce
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import own_ns, own_time_of
from stepscope.analyze.host_time import data_loading, recorded_events
from stepscope.analyze.training_step import DATA_CAUSES, Recurring, TrainingStep
from stepscope.contract.lateness import (
    ALL_STEPS,
    DEFAULT_SCORE,
    DEFAULT_SLOWDOWN,
    DEFAULT_WINDOW_STEPS,
    LateRank,
    late_ranks as late_of,
    lateness,
)
from stepscope.contract.step_line import HOST_WAIT
from stepscope.intervals import Intervals, covered_ns, union, union_of
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog
from stepscope.stats.robust import among, common, distinct, median
from stepscope.trace.table import EventKind, Int64s
from stepscope.units import ms

Floats = npt.NDArray[np.float64]

# a late rank waits less than this share of what the others wait, or by this share of its lateness less than they do
_WAITS_LESS = 0.5


def traced_lateness(
    shared: AlignedRun,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    threshold: float = DEFAULT_SCORE,
    slowdown: float = DEFAULT_SLOWDOWN,
) -> list[LateRank]:
    """Return how late each rank is by its own times in the trace, by rank; late only where the others wait for it."""
    own = own_times(shared)
    if own is None:
        return []
    numbers = [rank.rank for rank in shared.run.ranks]
    own = own[:, -window_steps:]
    judged = lateness(
        {rank: row.tolist() for rank, row in zip(numbers, own, strict=True)}, threshold=threshold, slowdown=slowdown
    )
    place = {rank: index for index, rank in enumerate(numbers)}
    peers = [place[one.rank] for one in judged if not one.is_late]
    waited = _waited_in_steps(shared)[:, -window_steps:]
    return [one._replace(is_late=one.is_late and _is_waited_for(place[one.rank], own, waited, peers)) for one in judged]


def late_ranks(shared: AlignedRun) -> list[LateRank]:
    """Return the ranks that are late by their own times and waits alone, the latest first."""
    return late_of(traced_lateness(shared))


def _is_waited_for(index: int, own: Floats, waited: Floats, peers: list[int]) -> bool:
    beyond = own[index] - np.median(own[peers], axis=0)
    then = beyond > max(float(beyond.mean()) / 2, 0.0)  # ranks that are late in turn wait for each other
    mine, theirs = float(waited[index, then].sum()), median(waited[peers][:, then].sum(axis=1))
    return mine < _WAITS_LESS * theirs or theirs - mine >= _WAITS_LESS * float(beyond[then].sum())


def own_times(shared: AlignedRun) -> Floats | None:
    """Return own time per rank and common step in ns, None where the ranks have no step or no collective in common.

    Windows without steps begin and end anywhere, so times in them are not comparable. NaN for ranks that recorded no
    step, or took part in nothing that could be matched: no wait for them is known.
    """
    numbers = common_steps(shared.run.ranks)
    if not len(numbers) or not len(shared.matches) or any(rank.steps.is_window for rank in shared.run.ranks):
        return None
    own = np.full((len(shared.run.ranks), len(numbers)), np.nan)
    for index in distinct(shared.matches.rank_index).tolist():
        rank = shared.run.ranks[index]
        if not len(rank.steps):
            continue
        waits = _waiting(shared, index)
        by_number = np.argsort(rank.steps.number)
        at = by_number[np.searchsorted(rank.steps.number, numbers, sorter=by_number)]
        if rank.has_device:
            # How much of an unmatched collective is waiting is unknown, so it does not count as own time.
            waits = union_of(waits, _unmatched(shared, index))
        own[index] = own_ns(own_time_of(rank), rank.steps, waits)[at]
    return own


def _waiting(shared: AlignedRun, index: int) -> Intervals:
    """Return when a rank did nothing but wait for others inside collectives.

    Point-to-point waits do not count: in a pipeline they are the schedule's, not a late rank's.
    """
    c, wait = shared.run.ranks[index].collectives, shared.wait_ns[index]
    counts = (wait > 0) & ~among(c.op, POINT_TO_POINT)
    return union(c.start_ns[counts], c.start_ns[counts] + wait[counts])


def _waited_in_steps(shared: AlignedRun) -> Floats:
    ranks, numbers = shared.run.ranks, common_steps(shared.run.ranks)
    out = np.zeros((len(ranks), len(numbers)))
    for index, rank in enumerate(ranks):
        c, wait = rank.collectives, shared.wait_ns[index]
        counts = np.flatnonzero((wait > 0) & ~among(c.op, POINT_TO_POINT) & (c.step >= 0))
        number = rank.steps.number[c.step[counts]]
        common = among(number, numbers)
        np.add.at(out[index], np.searchsorted(numbers, number[common]), wait[counts][common])
    return out


def _unmatched(shared: AlignedRun, index: int) -> Intervals:
    c = shared.run.ranks[index].collectives
    lost = shared.wait_ns[index] == UNMATCHED
    return union(c.start_ns[lost], c.end_ns[lost])


def common_steps(ranks: Sequence[Rank]) -> npt.NDArray[np.int64]:
    """Return the step numbers that every rank recorded; ranks that recorded none have no say."""
    recorded = [rank.steps.number for rank in ranks if len(rank.steps)]
    return np.sort(reduce(common, recorded)) if recorded else np.empty(0, np.int64)


_SAME_OPERATORS = 0.02
# a part that explains at least half of the lateness names the cause
_MAIN_CAUSE = 0.5


def find_stragglers(
    shared: AlignedRun,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    threshold: float = DEFAULT_SCORE,
    slowdown: float = DEFAULT_SLOWDOWN,
    overhead_ns_per_step: float = 0.0,
) -> list[Row]:
    """Return the late ranks, the latest first.

    `overhead_ns_per_step` is what the profiler added to a step: lateness up to that may be the profiler's own and
    does not count.
    """
    judged = traced_lateness(shared.whole, window_steps=window_steps, threshold=threshold, slowdown=slowdown)
    place = {rank.rank: index for index, rank in enumerate(shared.run.ranks)}
    # why a rank is late, those tell that are there in full
    late = [one for one in late_of(judged) if one.rank in place and one.late_ns > overhead_ns_per_step]
    peers = [place[one.rank] for one in judged if one.rank in place and not one.is_late]
    if not late or not peers:
        return []
    parts = _parts(shared.run.ranks, late[0].num_steps)
    return [_with_cause(shared.run, one, place[one.rank], peers, parts) for one in late]


def _with_cause(run: Run, late: LateRank, index: int, peers: list[int], parts: dict[str, Floats]) -> Row:
    excess = {name: float(values[index] - median(values[peers])) for name, values in parts.items()}
    return _straggler(late, cause=_cause(run, index, peers[0], excess, late.late_ns), evidence=excess)


def _straggler(late: LateRank, *, cause: str, evidence: dict[str, float]) -> Row:
    return Row(
        rank=late.rank,
        cause=cause,
        late_ns_per_step=late.late_ns,
        steps_late=late.steps_late,
        num_steps=late.num_steps,
        score=late.score,
        slowdown=late.slowdown,
        persistent=late.persistent,
        evidence=evidence,
    )


def _parts(ranks: Sequence[Rank], last_steps: int) -> dict[str, Floats]:
    return {
        "data": np.array([_data_ns(r, last_steps) for r in ranks]),
        "device": np.array([_device_ns(r, last_steps) for r in ranks]),
    }


def _cause(run: Run, index: int, peer: int, excess: dict[str, float], late_ns: float) -> str:
    """Return the part that explains the lateness; what neither data nor device explains is the host's.

    Without a device the host computes, so that more work shows there.
    """
    mine, other = run.ranks[index], run.ranks[peer]
    if excess["data"] >= _MAIN_CAUSE * late_ns:
        return "data"
    on_device = excess["device"] >= _MAIN_CAUSE * late_ns
    if on_device and _other_shapes(mine, other):
        return "load"
    if (on_device or not mine.has_device) and _more_flops(run, mine, other):
        return "load"
    return "device" if on_device else "host"


def _more_flops(run: Run, mine: Rank, other: Rank) -> bool:
    flops, theirs = (_counted_flops(run, rank) for rank in (mine, other))
    if not flops or not theirs or flops < DEFAULT_SLOWDOWN * theirs:
        return False
    operators, as_many = (recorded_events(rank).sum() / max(len(rank.steps), 1) for rank in (mine, other))
    return bool(abs(operators - as_many) <= _SAME_OPERATORS * as_many)


def _counted_flops(run: Run, rank: Rank) -> float | None:
    said: Any = run.description.get("ranks")
    for key in (str(rank.rank), "flops", "total"):
        said = said.get(key) if isinstance(said, dict) else None
    return float(said) if isinstance(said, int | float) and said > 0 else None


def _data_ns(rank: Rank, last_steps: int) -> float:
    recent = slice(-last_steps, None)
    return covered_ns(data_loading(rank), rank.steps.start_ns[recent], rank.steps.end_ns[recent]).sum() / last_steps


def _device_ns(rank: Rank, last_steps: int) -> float:
    if not rank.has_device:
        return 0.0
    work = rank.work
    recent = (work.step >= max(len(rank.steps) - last_steps, 0)) & (work.kind == EventKind.KERNEL)
    return union(work.start_ns[recent], work.end_ns[recent]).total_ns / last_steps


def _other_shapes(rank: Rank, peer_rank: Rank) -> bool:
    mine, peer = _operator_shapes(rank), _operator_shapes(peer_rank)
    names, peer_names = Counter[str](), Counter[str]()
    for (name, _), n in mine.items():
        names[name] += n
    for (name, _), n in peer.items():
        peer_names[name] += n
    same_operators = sum((names - peer_names).values()) <= _SAME_OPERATORS * sum(names.values())
    return same_operators and sum(n for key, n in mine.items() if key not in peer) > 0.2 * sum(mine.values())


def _operator_shapes(rank: Rank) -> Counter[tuple[str, str]]:
    op = distinct(rank.work.op_row[(rank.work.op_row >= 0) & (rank.work.step >= 0)])
    names, dims = rank.trace["name"][op], rank.trace.arg("input_dims").at(op, missing=-1)
    pairs, counts = np.unique(np.stack((names.astype(np.int64), dims)), axis=1, return_counts=True)
    return Counter(
        {
            (rank.trace.text(int(n)) or "", rank.trace.text(int(d)) or ""): int(count) // max(len(rank.steps), 1)
            for n, d, count in zip(pairs[0], pairs[1], counts, strict=True)
        }
    )


# Do ranks have different amounts of work, step by step? Ranks that meet in every step wait for the one with the most.
#
#     imbalance = mean over steps of (the most that a rank computes - what the mean rank computes)
#
# A slow device takes longer for the same work, an uneven load is more work: more threads are launched, or the recorder
# counted more FLOPs. Ranks may take turns at it (samples of uneven length), so that over all steps none is the late
# one.

# of what the mean rank computes: equal work differs by a few percent from rank to rank
_MIN_IMBALANCE = 0.10
# times the others' threads: then the load differs, not the device
_MORE_WORK = 1.10
_MIN_SHARE_OF_STEPS = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class UnevenCompute(ArrayRecord):
    """What ranks compute in the steps that all of them recorded."""

    ranks: tuple[int, ...]
    #: by rank and step, kernels other than communication
    compute_ns: Floats
    #: by rank and step: of those kernels, 0 where a trace does not say
    threads: Floats

    @property
    def imbalance_ns(self) -> float:
        return _imbalance_ns(self.compute_ns)

    @property
    def heaviest(self) -> tuple[int, ...]:
        """Return the rank that has most in over half of the steps; none where they take turns."""
        most = np.bincount(self.compute_ns.argmax(axis=0), minlength=len(self.ranks))
        return (self.ranks[int(most.argmax())],) if most.max() > _MIN_SHARE_OF_STEPS * self.compute_ns.shape[1] else ()

    @property
    def is_load(self) -> bool:
        """Return whether the rank with most compute launches more threads than others, in over half of the steps."""
        mine = self.threads[self.compute_ns.argmax(axis=0), np.arange(self.compute_ns.shape[1])]
        others = (self.threads.sum(axis=0) - mine) / (len(self.ranks) - 1)
        return bool(((mine >= _MORE_WORK * others) & (others > 0)).mean() > _MIN_SHARE_OF_STEPS)


def _imbalance_ns(compute_ns: Floats) -> float:
    return float((compute_ns.max(axis=0) - compute_ns.mean(axis=0)).mean())


def uneven_compute(ranks: Sequence[Rank]) -> UnevenCompute | None:
    """Return what ranks compute per step where they differ by 10 % and their loads do; None where they do not."""
    numbers = common_steps(ranks)
    if len(ranks) < 2 or not len(numbers) or not all(r.has_device and len(r.steps) for r in ranks):
        return None
    if any(r.steps.is_window for r in ranks):
        return None
    each = list(zip(ranks, [_kernels(rank, numbers) for rank in ranks], strict=True))
    compute_ns = np.array([_sums(at, (r.work.end_ns - r.work.start_ns)[rows], len(numbers)) for r, (rows, at) in each])
    if not _imbalance_ns(compute_ns) >= _MIN_IMBALANCE * float(compute_ns.mean()) > 0:
        return None
    threads = np.array([_sums(at, _threads(r, r.work.row[rows]), len(numbers)) for r, (rows, at) in each])
    found = UnevenCompute(tuple(r.rank for r in ranks), compute_ns, threads)
    return found if found.is_load else None


def _kernels(rank: Rank, numbers: Int64s) -> tuple[Int64s, Int64s]:
    work, number = rank.work, rank.steps.number
    place = np.where(among(number, numbers), np.searchsorted(numbers, number), -1)
    rows = np.flatnonzero((work.kind == int(EventKind.KERNEL)) & (work.step >= 0))
    at = place[work.step[rows]]
    common = np.flatnonzero(at >= 0)
    return rows[common], at[common]


def _sums(at: Int64s, values: npt.NDArray[Any], count: int) -> Floats:
    return np.bincount(at, values, minlength=count).astype(float)


def _threads(rank: Rank, rows: npt.NDArray[np.int64]) -> Floats:
    out = np.ones(len(rows))
    strings = rank.trace.strings
    for name in ("grid", "block"):
        ids = rank.trace.arg(name).at(rows, missing=-1)
        size_of = np.zeros(len(strings) + 1)  # one more, that of no text, stays 0
        known = [i for i in distinct(ids).tolist() if i >= 0]
        size_of[known] = [_product(strings[i]) for i in known]
        out *= size_of[ids]
    return out


@lru_cache(maxsize=4096)
def _product(text: str) -> float:
    words = text.strip("[] ").split(",")
    return float(prod(float(w) for w in words)) if all(w.strip().isdigit() for w in words) else 0.0


# Which ranks are late in the training, by everything that is known: the profiled steps and all logged ones.
#
# Five profiled steps name a rank and the cause of its lateness; the unprofiled steps, of which there are many more,
# show whether it is late and by how much:
#
#     late in the trace    late in the log    log conclusive
#     yes                  yes                yes                 late, by the log
#     yes                  no                 yes                 not late: only in the window, or the log has too few
#                                                                 steps to confirm it; with a note
#     no                   yes                yes                 late, the cause by the regions of the log
#     yes                  -                  no                  late, by the trace
#
# The log is conclusive where the wait for the others' gradients is measured on every rank, and is the only wait: where
# ranks also wait elsewhere their own times by the log are longer than those in the trace. A rank that is late in some
# steps only (it alone saves checkpoints) is handled by `training_step.py`.

# of the lateness: own times by the log that are longer by more hold waits
_HIDDEN_WAIT = 0.5


def training_stragglers(
    shared: AlignedRun, traced: Sequence[Row], *, logs: Sequence[StepLog], training: TrainingStep | None
) -> Row:
    """Return the late ranks by trace and logs together, the latest first."""
    by_log = {late.rank: late for late in _told(shared, traced, logs)}
    recurring = _recurring_late(logs, training)
    found, notes = [], []
    late_ns: dict[int, float] = {}
    for s in traced:
        log = by_log.get(s.rank)
        if log is not None:
            late_ns[s.rank] = max(log.late_ns, 0)
        if log is None or log.is_late:
            found.append(s if log is None else _straggler(log, cause=s.cause, evidence=s.evidence))
        elif s.rank in recurring:
            found.append(Row(s, late_ns_per_step=recurring[s.rank].late_ns_per_step))
        else:
            notes.append(_cleared(s, log))
    named = {s.rank for s in found}
    for rank, log in by_log.items():
        if rank not in named and log.is_late:
            found.append(_from_log(log, logs))
            late_ns[rank] = log.late_ns
    named = {s.rank for s in found}
    found += [s for rank, s in recurring.items() if rank not in named]
    return Row(stragglers=tuple(sorted(found, key=lambda s: -s.late_ns_per_step)), late_ns=late_ns, notes=tuple(notes))


def cleared_by_logs(shared: AlignedRun, rank: int, late_ns: float, logs: Sequence[StepLog]) -> bool:
    """Return whether the logs rule out that a rank is late which the trace shows late by `late_ns`."""
    traced = Row(rank=rank, late_ns_per_step=late_ns)
    told = [late for late in _told(shared, [traced], logs) if late.rank == rank]
    return bool(told) and not told[0].is_late


def _told(shared: AlignedRun, traced: Sequence[Row], logs: Sequence[StepLog]) -> list[LateRank]:
    shared = shared.whole
    if len(logs) < 2 or {log.rank for log in logs} != {r.rank for r in shared.run.ranks}:
        return []
    if any(np.isnan(log.column(HOST_WAIT)).all() for log in logs):
        return []
    from stepscope.analyze.log_stragglers import log_lateness  # only where there are logs

    judged = log_lateness(logs, window_steps=ALL_STEPS)
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
        own = (log.dur_ns - log.column(HOST_WAIT))[np.isin(log.step, numbers)]
        if len(own) < len(numbers) or np.isnan(own).any():
            return {}
        found[log.rank] = float(own.mean())
    return found


def _waits_elsewhere(s: Row, logged_ns: dict[int, float], traced_ns: dict[int, float]) -> bool:
    others = [(logged_ns[rank], traced_ns[rank]) for rank in logged_ns if rank != s.rank]
    beyond = [logged - traced for logged, traced in others if not np.isnan(traced)]
    return bool(beyond) and median(beyond) > _HIDDEN_WAIT * s.late_ns_per_step


def _from_log(log: LateRank, logs: Sequence[StepLog]) -> Row:
    data = {each.rank: _typical_ns(each, "data_loading") for each in logs}
    excess = data[log.rank] - median([ns for rank, ns in data.items() if rank != log.rank])
    cause = "data" if excess >= _MAIN_CAUSE * log.late_ns else "host"
    return _straggler(log, cause=cause, evidence={"data": max(excess, 0.0)})


def _typical_ns(log: StepLog, region: str) -> float:
    times: npt.NDArray[np.float64] = np.nan_to_num(log.column(f"regions.{region}.ns"))[log.unprofiled]
    return median(times) if len(times) else 0.0


def _cleared(s: Row, log: LateRank) -> str:
    interval = f"{ms(log.low_ns):.1f} to {ms(log.high_ns):.1f}"
    tells = log.num_steps >= 10 or log.high_ns < s.late_ns_per_step
    so = "it is no straggler" if tells else "too few to call it late; record more steps"
    return (
        f"rank {s.rank} was {ms(s.late_ns_per_step):.1f} ms late per step in the {s.num_steps} profiled steps, but "
        f"{ms(log.late_ns):.1f} ms ({interval}) in the {log.num_steps} steps without the profiler: {so}"
    )


def _recurring_late(logs: Sequence[StepLog], training: TrainingStep | None) -> dict[int, Row]:
    """Return the ranks in which something recurs that the others wait for."""
    if training is None:
        return {}
    from stepscope.analyze.log_stragglers import recurring_lateness  # only where there are logs

    late = late_of(recurring_lateness(logs, training))
    return {one.rank: _recurring_straggler(training.recurring, one) for one in late}


def _recurring_straggler(r: Recurring, late: LateRank) -> Row:
    evidence = {c: float(r.rank_ns(c)[r.ranks.index(late.rank)]) for c in r.causes}
    data_ns = sum(evidence.get(c, 0.0) for c in DATA_CAUSES)
    return _straggler(late, cause="data" if data_ns >= _MAIN_CAUSE * late.late_ns else "host", evidence=evidence)
