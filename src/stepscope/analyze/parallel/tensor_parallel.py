"""What does tensor parallelism cost, layer by layer?

Every layer ends in an exchange of activations that the next layer needs, so its time can hardly be hidden. The share
of a layer is what is exposed of its exchange, against the time from the end of the exchange before it to its own end:

    compute   =====        ======
    exchange       |-----|       |-----|
              <--- layer 0 --->
                         <-- layer 1 -->
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.parallel.strategy import Strategy
from stepscope.analyze.ranks.traffic import RankTraffic, num_steps, over_ranks, rank_traffic, share_of_step_pct
from stepscope.analyze.ranks.window import RankAccount
from stepscope.analyze.step.phases import Phase
from stepscope.dataclass import dataclass
from stepscope.intervals import covered_ns
from stepscope.records import ArrayRecord
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import Spread
from stepscope.trace.table import Int64s

KIND = "tp"
_PASSES = ((Phase.FORWARD, "forward"), (Phase.BACKWARD, "backward"))


@dataclass(frozen=True)
class Layer:
    """One exchange of a pass, by its position in it; means over ranks, passes and steps."""

    part: str
    """forward or backward"""
    position: int
    """in the pass, from 0"""
    size_bytes: float | None
    time_ns: int
    exposed_ns: int
    wait_ns: int | None
    compute_ns: int
    """device compute since the exchange before"""
    share_pct: float
    """exposed time of the time since the exchange before"""
    occurrences: int


@dataclass(frozen=True)
class RankTensorParallel(RankTraffic):
    """The exchanges of one rank, per step."""

    share_of_step_pct: float | None
    """exposed time of the step's period"""


@dataclass(frozen=True)
class TensorParallelView:
    """Tensor parallelism of the run."""

    layers: tuple[Layer, ...]
    ranks: tuple[RankTensorParallel, ...]
    over_ranks: dict[str, Spread]


def tensor_parallel_view(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> TensorParallelView | None:
    """Return the exchanges of tensor parallelism, None where there are none."""
    ranks, found = [], []
    for index, account in enumerate(accounts):
        rows = strategy.rows_of(index, KIND)
        if account is None or not len(rows):
            continue
        ranks.append(_rank_view(shared, index, account, rows))
        found.append(_exchanges(shared, strategy, index, account, rows))
    if not ranks:
        return None
    return TensorParallelView(_layers(found), tuple(ranks), over_ranks(ranks))


def _rank_view(shared: AlignedRun, index: int, account: RankAccount, rows: Int64s) -> RankTensorParallel:
    traffic = rank_traffic(shared, index, rows, account)
    return RankTensorParallel(**vars(traffic), share_of_step_pct=share_of_step_pct(traffic, shared.run.ranks[index]))


@dataclass(frozen=True, eq=False, repr=False)
class _Exchanges(ArrayRecord):
    """The exchanges of one rank, one element each."""

    part: Int64s
    position: Int64s
    size_bytes: Int64s
    time_ns: Int64s
    exposed_ns: Int64s
    wait_ns: Int64s
    compute_ns: Int64s
    since_ns: Int64s
    """from the end of the one before to its own end"""


def _exchanges(shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount, rows: Int64s) -> _Exchanges:
    rank = shared.run.ranks[index]
    c = rank.collectives
    start, end = c.start_ns[rows], c.end_ns[rows]
    before = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    step = c.step[rows]
    first_of_step = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    before[first_of_step] = np.minimum(
        _step_begins(rank, step[first_of_step], start[first_of_step]), start[first_of_step]
    )
    before = np.minimum(before, start)
    return _Exchanges(
        part=strategy.phases[index][rows].astype(np.int64),
        position=_positions(rank, strategy, index, rows),
        size_bytes=c.full_bytes[rows],
        time_ns=end - start,
        exposed_ns=covered_ns(account.exposed_comm, start, end),
        wait_ns=shared.wait_ns[index][rows],
        compute_ns=covered_ns(account.compute, before, start),
        since_ns=end - before,
    )


def _step_begins(rank: Rank, steps: npt.NDArray[np.int32], otherwise: Int64s) -> Int64s:
    """Return when the device began each step's own work: the first layer does not begin with the step before it."""
    begins = np.full(num_steps(rank), np.iinfo(np.int64).max)
    mine = rank.work.step >= 0
    np.minimum.at(begins, rank.work.step[mine], rank.work.start_ns[mine])
    known = (steps >= 0) & (begins[steps] < np.iinfo(np.int64).max)
    return np.where(known, begins[steps], otherwise)


def _positions(rank: Rank, strategy: Strategy, index: int, rows: Int64s) -> Int64s:
    """Return each exchange's position in its pass: micro-batches repeat the same exchanges."""
    c, part = rank.collectives, strategy.phases[index][rows]
    backward = strategy.passes[index].backward
    passes = rank.steps.of(backward.start) if len(rank.steps) else np.zeros(len(backward), np.int32)
    position = np.zeros(len(rows), np.int64)
    for step in distinct(c.step[rows]).tolist():
        for phase, _ in _PASSES:
            mine = np.flatnonzero((c.step[rows] == step) & (part == phase))
            microbatches = max(int((passes == step).sum()), 1) if len(rank.steps) else max(len(backward), 1)
            per_pass = len(mine) // microbatches if len(mine) % microbatches == 0 else len(mine)
            position[mine] = np.arange(len(mine)) % max(per_pass, 1)
    return position


def _layers(found: Sequence[_Exchanges]) -> tuple[Layer, ...]:
    """Return the mean of every exchange with the same part and position."""
    part, position, size, time, exposed, wait, compute, since = (
        np.concatenate([getattr(x, name) for x in found]) for name in _Exchanges.__dataclass_fields__
    )
    out = []
    for phase, name in _PASSES:
        for k in distinct(position[part == phase]).tolist():
            mine = (part == phase) & (position == k)
            out.append(
                Layer(
                    part=name,
                    position=k,
                    size_bytes=float(size[mine].mean()) if (size[mine] >= 0).all() else None,
                    time_ns=round(time[mine].mean()),
                    exposed_ns=round(exposed[mine].mean()),
                    wait_ns=round(wait[mine].mean()) if (wait[mine] >= 0).all() else None,
                    compute_ns=round(compute[mine].mean()),
                    share_pct=100 * float(exposed[mine].sum() / max(since[mine].sum(), 1)),
                    occurrences=int(mine.sum()),
                )
            )
    return tuple(out)
