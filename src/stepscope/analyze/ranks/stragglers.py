"""Which ranks make the others wait, how much, how often, and why?

After a collective all ranks have the same step time, so step times cannot tell; and a rank that merely lags behind
by a constant time costs nothing. What tells is a rank's *own time*: what its host, or its device, needs for a step
when it waits for nobody. A rank is a straggler when its own time is an outlier among the others' (leave-one-out,
robust score), at least 10 % above their mean, and the others do wait for it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.time import data_loading, recorded_events
from stepscope.analyze.ranks.own_time import own_ns, own_time
from stepscope.contract.late_ranks import DEFAULT_SCORE, DEFAULT_SLOWDOWN, DEFAULT_WINDOW_STEPS, NOISE_SHARE
from stepscope.intervals import Intervals, covered_ns, union, union_of
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.load import Run
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.robust import mad_sigma
from stepscope.trace.classify import EventKind

Floats = npt.NDArray[np.float64]

_WAITS_LESS = 0.5
"""a straggler waits less than this share of what the others wait"""
_SAME_OPERATORS = 0.02
_MAIN_CAUSE = 0.5
"""a part that explains at least half of the lateness names the cause"""


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for."""

    rank: int
    cause: str
    """host, device, data, load or network"""
    late_ns_per_step: float
    """own time beyond the median of the others', mean over the steps"""
    steps_late: int
    num_steps: int
    score: float
    slowdown: float
    """own time / mean own time of the others"""
    evidence: dict[str, float]
    """excess over the others' median in ns per step, by part"""

    @property
    def persistent(self) -> bool:
        """Return whether it was late in most of the steps."""
        return self.steps_late > self.num_steps / 2


def find_stragglers(
    shared: AlignedRun,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    threshold: float = DEFAULT_SCORE,
    slowdown: float = DEFAULT_SLOWDOWN,
    overhead_ns_per_step: float = 0.0,
) -> list[Straggler]:
    """Return the late ranks, the latest first.

    `overhead_ns_per_step` is what the profiler added to a step: lateness up to that may be the profiler's own and
    does not count.
    """
    own = own_times(shared)
    compared = np.flatnonzero(~np.isnan(own).any(axis=1)) if own is not None else np.empty(0, int)
    if own is None or len(compared) < 2:
        return []
    waited = waited_in_steps(shared)[:, -window_steps:]
    own = own[:, -window_steps:]
    parts = None
    found = []
    for index in compared.tolist():
        peers = compared[compared != index]
        others = own[peers]
        mine, theirs = float(own[index].mean()), others.mean(axis=1)
        late_ns = mine - float(np.median(theirs))
        noise = max(mad_sigma(theirs), NOISE_SHARE * float(np.median(theirs)))
        score = late_ns / noise if noise else 0.0
        late_in = own[index] >= slowdown * others.mean(axis=0)
        if score < threshold or mine < slowdown * theirs.mean() or late_ns <= overhead_ns_per_step:
            continue
        # Ranks that are late in turn wait for each other: what counts is who waits in the steps in which it is late.
        then = late_in if late_in.any() else np.ones_like(late_in)
        if waited[index, then].sum() >= _WAITS_LESS * np.median(waited[peers][:, then].sum(axis=1)):
            continue
        parts = _parts(shared.run.ranks, own.shape[1]) if parts is None else parts
        excess = {name: float(values[index] - np.median(values[peers])) for name, values in parts.items()}
        found.append(
            Straggler(
                rank=shared.run.ranks[index].rank,
                cause=_cause(shared.run, index, int(peers[0]), excess, late_ns),
                late_ns_per_step=late_ns,
                steps_late=int(late_in.sum()),
                num_steps=own.shape[1],
                score=round(score, 2),
                slowdown=float(mine / theirs.mean()),
                evidence=excess,
            )
        )
    return sorted(found, key=lambda s: -s.late_ns_per_step)


def own_times(shared: AlignedRun) -> Floats | None:
    """Return own time per rank and common step in ns, None where the ranks have no step or no collective in common.

    Windows that no step divides begin and end anywhere, so nobody's time in them can be held against another's.

    NaN for ranks that recorded no step, or took part in nothing that could be matched: nobody is known to wait for
    them.
    """
    numbers = common_steps(shared.run.ranks)
    if not len(numbers) or not len(shared.matches) or any(rank.steps.is_window for rank in shared.run.ranks):
        return None
    own = np.full((len(shared.run.ranks), len(numbers)), np.nan)
    for index in np.unique(shared.matches.rank_index).tolist():
        rank = shared.run.ranks[index]
        if not len(rank.steps):
            continue
        waits = waiting(shared, index)
        by_number = np.argsort(rank.steps.number)
        at = by_number[np.searchsorted(rank.steps.number, numbers, sorter=by_number)]
        if rank.has_device:
            # How much of an unmatched collective is waiting is unknown: being in one is nobody's own time.
            waits = union_of(waits, unmatched(shared, index))
        own[index] = own_ns(own_time(rank), rank.steps, waits)[at]
    return own


def waiting(shared: AlignedRun, index: int) -> Intervals:
    """Return when a rank did nothing but wait for others inside collectives.

    Point-to-point waits do not count: in a pipeline they are the schedule's, not a late rank's.
    """
    c, wait = shared.run.ranks[index].collectives, shared.wait_ns[index]
    counts = (wait > 0) & ~np.isin(c.op, POINT_TO_POINT)
    return union(c.start_ns[counts], c.start_ns[counts] + wait[counts])


def waited_in_steps(shared: AlignedRun) -> Floats:
    """Return per rank and common step how long the rank waited for others in collectives of that step, in ns."""
    ranks, numbers = shared.run.ranks, common_steps(shared.run.ranks)
    out = np.zeros((len(ranks), len(numbers)))
    for index, rank in enumerate(ranks):
        c, wait = rank.collectives, shared.wait_ns[index]
        counts = np.flatnonzero((wait > 0) & ~np.isin(c.op, POINT_TO_POINT) & (c.step >= 0))
        number = rank.steps.number[c.step[counts]]
        common = np.isin(number, numbers)
        np.add.at(out[index], np.searchsorted(numbers, number[common]), wait[counts][common])
    return out


def unmatched(shared: AlignedRun, index: int) -> Intervals:
    """Return when a rank was inside collectives that no other rank could be found for."""
    c = shared.run.ranks[index].collectives
    lost = shared.wait_ns[index] == UNMATCHED
    return union(c.start_ns[lost], c.end_ns[lost])


def common_steps(ranks: Sequence[Rank]) -> npt.NDArray[np.int64]:
    """Return the step numbers that every rank recorded; ranks that recorded none have no say."""
    recorded = [rank.steps.number for rank in ranks if len(rank.steps)]
    return np.sort(reduce(np.intersect1d, recorded)) if recorded else np.empty(0, np.int64)


def _parts(ranks: Sequence[Rank], last_steps: int) -> dict[str, Floats]:
    """Return per rank what its steps are made of, in ns per step: loading data and computing on the device."""
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
    """Return whether the recorder counted more FLOPs than a peer's for as many operators."""
    flops, theirs = (_counted_flops(run, rank) for rank in (mine, other))
    if not flops or not theirs or flops < DEFAULT_SLOWDOWN * theirs:
        return False
    operators, as_many = (recorded_events(rank).sum() / max(len(rank.steps), 1) for rank in (mine, other))
    return bool(abs(operators - as_many) <= _SAME_OPERATORS * as_many)


def _counted_flops(run: Run, rank: Rank) -> float | None:
    """Return the FLOPs of one step that the recorder counted on a rank."""
    said: Any = run.description.get("ranks")
    for key in (str(rank.rank), "flops", "total"):
        said = said.get(key) if isinstance(said, dict) else None
    return float(said) if isinstance(said, int | float) and said > 0 else None


def _data_ns(rank: Rank, last_steps: int) -> float:
    recent = slice(-last_steps, None)
    return covered_ns(data_loading(rank), rank.steps.start_ns[recent], rank.steps.end_ns[recent]).sum() / last_steps


def _device_ns(rank: Rank, last_steps: int) -> float:
    """Return compute per step: of the device, or of the host's operators where there is no device."""
    if not rank.has_device:
        return 0.0
    work = rank.work
    recent = (work.step >= max(len(rank.steps) - last_steps, 0)) & (work.kind == EventKind.KERNEL)
    return union(work.start_ns[recent], work.end_ns[recent]).total_ns / last_steps


def _other_shapes(rank: Rank, peer_rank: Rank) -> bool:
    """Return whether a rank ran the same operators as a peer on other shapes: more load, not a slower device."""
    mine, peer = _operator_shapes(rank), _operator_shapes(peer_rank)
    names, peer_names = Counter[str](), Counter[str]()
    for (name, _), n in mine.items():
        names[name] += n
    for (name, _), n in peer.items():
        peer_names[name] += n
    same_operators = sum((names - peer_names).values()) <= _SAME_OPERATORS * sum(names.values())
    other = sum(n for key, n in mine.items() if key not in peer)
    return same_operators and other > 0.2 * sum(mine.values())


def _operator_shapes(rank: Rank) -> Counter[tuple[str, str]]:
    """Return how often each operator launched device work on which shapes, per recorded step."""
    op = np.unique(rank.work.op_row[(rank.work.op_row >= 0) & (rank.work.step >= 0)])
    names, dims = rank.trace["name"][op], rank.trace.arg("input_dims").at(op, missing=-1)
    pairs, counts = np.unique(np.stack((names.astype(np.int64), dims)), axis=1, return_counts=True)
    return Counter(
        {
            (rank.trace.text(int(n)) or "", rank.trace.text(int(d)) or ""): int(count) // max(len(rank.steps), 1)
            for n, d, count in zip(pairs[0], pairs[1], counts, strict=True)
        }
    )
