"""What would the recorded step take on more devices? Same work per rank, communication among more ranks.

The replay has the run's compute and dependencies, so overlap is modelled: transfers grow by `scale_transfers` and are
exposed where no compute is left to hide them. More ranks also wait for a later last one: with own times that spread by
sigma, the last of N is about sigma z(N) late, z(N) the expected largest of N normal values; the recorded waiting is in
the replay, the rest is added.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.replay.graph import NOTHING, Program
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.analyze.stragglers import own_times
from stepscope.contract.operations import OPERATIONS, OPS
from stepscope.cost.calibration import Calibration, Estimate
from stepscope.errors import InputError, UsageError
from stepscope.lab.predict.calibrate import calibrate, points_from_run
from stepscope.lab.predict.closed_form import Fabric
from stepscope.lab.predict.strategy_cost import Source
from stepscope.run.rank import Rank
from stepscope.units import ms

# What would each recorded transfer take among more ranks?
#
# Groups of data-parallel ranks grow with the job, all others stay as they are. With a calibration, or the run's own
# transfers as one, a recorded time changes by the ratio of the two predictions, so that what is particular to this run
# stays in it. With links alone there is nothing to compare: the transfer takes what the links give.

# kinds of traffic whose groups are the data-parallel ranks
_GROWING = ("ddp", "zero1", "zero2", "fsdp-zero2", "fsdp-zero3", "small", "unknown")
# of a time from links alone, which were not measured
_LINK_DOUBT = 0.3

Floats = npt.NDArray[np.float64]


def growing_rows(account: Account) -> list[npt.NDArray[np.int64]]:
    """Return per rank the collectives of groups that grow with the job."""
    return [
        np.concatenate([rows for kind, rows in by_kind.items() if kind in _GROWING] or [np.empty(0, np.int64)])
        for by_kind in account.strategy.rows
    ]


def _scaled_transfers(
    account: Account,
    rows: Sequence[npt.NDArray[np.int64]],
    *,
    factor: float,
    source: Source,
) -> list[Floats]:
    """Return the time, the least and the most of each row of a rank's Collectives in ns; -1 for what does not grow."""
    known: dict[tuple[str, int, int], tuple[float, float, float]] = {}
    out = []
    for rank, wait, mine in zip(account.run.ranks, account.shared.wait_ns, rows, strict=True):
        c = rank.collectives
        columns = np.full((3, len(c)), -1.0)
        recorded = (c.end_ns - c.start_ns) - np.maximum(wait, 0)
        for row in mine.tolist():
            op, size, ranks = OPS[c.op[row]], int(c.full_bytes[row]), _group_size(account, rank, row)
            if op not in OPERATIONS or size <= 0 or ranks is None or ranks < 2:
                continue
            if (op, size, ranks) not in known:
                known[op, size, ranks] = _change(source, op, size, ranks, round(ranks * factor))
            times = np.array(known[op, size, ranks])
            columns[:, row] = times if isinstance(source, Fabric) else times * recorded[row]
        out.append(columns)
    return out


def _change(source: Source, op: str, size: int, ranks: int, wanted: int) -> tuple[float, float, float]:
    if isinstance(source, Fabric):
        time = source.predict(op, size_bytes=size, world_size=wanted).time_ns
        return time, time * (1 - _LINK_DOUBT), time * (1 + _LINK_DOUBT)
    if wanted == ranks:
        return 1.0, 1.0, 1.0
    before = source.predict(op, size_bytes=size, world_size=ranks)
    after = source.predict(op, size_bytes=size, world_size=wanted)
    ratio = after.time_ns / before.time_ns
    # What the curve misses at this size it misses before and after; only the step between world sizes is in doubt.
    half = np.sqrt(max(_half_width(after) ** 2 - _half_width(before) ** 2, 0.0))
    return ratio, float(ratio * np.exp(-half)), float(ratio * np.exp(half))


def _half_width(estimate: Estimate) -> float:
    return float(np.log(estimate.high_ns / estimate.time_ns))


def _group_size(account: Account, rank: Rank, row: int) -> int | None:
    c = rank.collectives
    return c.groups[int(c.group[row])].size or account.run.world_size


# of the step: what a replay is wrong by, about, however good its inputs
_MODEL_ERROR = 0.05
# the true waiting that more ranks add / the predicted one: in `benchmarks/late_ranks.py waits` 90 % are in between
_LEAST_WAIT, _MOST_WAIT = 0.4, 4.0
# of the recorded ranks: beyond, no simulated job checked the waiting
_CHECKED_RANKS = 16
_MAX_WORLD_SIZE = 2**20


def scaled(
    account: Account,
    world_sizes: Sequence[int],
    *,
    source: Source | None = None,
    compute_factor: float = 1.0,
) -> dict[str, Any]:
    """Return the step at these world sizes as JSON; without a source the run's own transfers are the calibration.

    `compute_factor` is what compute takes longer where more ranks share a device or its cores. `comm_pct` is what
    communication adds to the step, `straggler_ms` what waiting for the last of more ranks adds, `weak_efficiency` the
    recorded step over this one, `without_comm_ms` the step if the growing groups' transfers took no time.
    """
    replay, recorded_world = _checked(account, world_sizes)
    rows = growing_rows(account)
    if not any(len(r) for r in rows):
        raise InputError(f"{account.run.name} has no collectives of data-parallel ranks")
    base = source if source is not None else calibrate(points_from_run(account.shared))
    recorded = account.step.step_ns if account.step else replay.period_ns
    if compute_factor <= 0:
        raise UsageError(f"the compute factor has to be above 0, not {compute_factor:g}")
    computing = (
        replay if compute_factor == 1 else rebuilt(replay, [_slower(p, compute_factor) for p in replay.programs])
    )
    offset = recorded - replay.period_ns  # measured step less the replay's
    no_time = [
        np.where(np.isin(np.arange(len(rank.collectives)), mine), 0.0, -1.0)
        for rank, mine in zip(account.run.ranks, rows, strict=True)
    ]
    without = recorded + _with_transfers(computing, no_time).period_ns - replay.period_ns
    spread = _spread_ns(account)

    def step_at(world: int) -> dict[str, Any]:
        transfers = _scaled_transfers(account, rows, factor=world / recorded_world, source=base)
        straggler = last_rank_ns(spread, recorded_world, world)
        waits = sorted((_LEAST_WAIT * straggler, _MOST_WAIT * straggler))
        periods = [_with_transfers(computing, [t[i] for t in transfers]).period_ns + offset for i in range(3)]
        step = max(periods[0] + straggler, 1.0)
        doubt = _MODEL_ERROR * step
        mfu = account.efficiency.mfu
        return {
            "world_size": world,
            "step_ms": ms(step),
            "low_ms": ms(max(min(periods[1] + waits[0], step) - doubt, 0.0)),
            "high_ms": ms(max(periods[2] + waits[1], step) + doubt),
            "comm_pct": round(100 * max(periods[0] - without, 0.0) / step, 2),
            "straggler_ms": ms(straggler),
            "mfu": None if mfu is None else round(mfu * recorded / step, 4),
            "weak_efficiency": round(recorded / step, 4),
        }

    said = "calibration" if isinstance(source, Calibration) else "given links" if source else "the run's own transfers"
    return {
        "run": account.run.name,
        "recorded": {"world_size": recorded_world, "step_ms": ms(recorded)},
        "without_comm_ms": ms(without),
        "rank_spread_ms": ms(spread),
        "source": said,
        "curve": [step_at(world) for world in sorted(set(world_sizes))],
        "notes": [*_notes(source), *_waiting_notes(account, spread, recorded_world, max(world_sizes))],
    }


def _checked(account: Account, world_sizes: Sequence[int]) -> tuple[Replay, int]:
    for world in world_sizes:
        if not 1 < world <= _MAX_WORLD_SIZE:
            raise UsageError(f"a world size has to be from 2 to {_MAX_WORLD_SIZE:,}, not {world}")
    recorded = account.run.world_size
    if account.replay is None or recorded is None or recorded < 2:
        raise InputError(
            f"{account.run.name} has {recorded or 'an unknown number of'} ranks; scaling needs at least 2, with steps "
            f"that can be replayed; record more ranks"
        )
    return account.replay, recorded


def _with_transfers(replay: Replay, times: Sequence[Floats]) -> Replay:
    programs = []
    for program, times_ns in zip(replay.programs, times, strict=True):
        duration = program.duration_ns.copy()
        items = np.flatnonzero(program.collective != NOTHING)
        new = times_ns[program.collective[items]]
        duration[items[new >= 0]] = np.rint(new[new >= 0]).astype(np.int64)
        programs.append(replace(program, duration_ns=duration))
    return rebuilt(replay, programs)


def _slower(program: Program, factor: float) -> Program:
    is_compute = program.collective == NOTHING
    duration = np.where(is_compute, np.rint(program.duration_ns * factor), program.duration_ns).astype(np.int64)
    host, tail = (
        replace(parts, own_ns=np.rint(parts.own_ns * factor).astype(np.int64)) for parts in (program.host, program.tail)
    )
    return replace(program, duration_ns=duration, host=host, tail=tail)


def _spread_ns(account: Account) -> float:
    own = own_times(account.shared)
    if own is None:
        return 0.0
    late = {s.rank for s in account.stragglers}
    usual = own[[r.rank not in late for r in account.run.ranks]]
    usual = usual[np.isfinite(usual).all(axis=1)] if len(usual) else usual
    return 0.0 if len(usual) < 2 else float(np.sqrt(usual.var(axis=0, ddof=1).mean()))


def last_rank_ns(spread_ns: float, recorded: int, wanted: int) -> float:
    """Return what waiting for the last of `wanted` ranks takes beyond that of the recorded ones."""
    return spread_ns * (_expected_largest(wanted) - _expected_largest(recorded))


def _expected_largest(count: int) -> float:
    """Return the expected maximum of `count` standard normal values (Blom's approximation).

    >>> round(_expected_largest(2), 2), round(_expected_largest(1024), 1)
    (0.59, 3.2)
    """
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _notes(source: Source | None) -> list[str]:
    notes = ["weak scaling: every rank does the same work as in the recorded run"]
    if source is None:
        notes.append("links as in the recorded run; give --link or --calibration for another fabric")
    if isinstance(source, Fabric):
        notes.append("times from links alone are taken as right within 30 %")
    return notes


def _waiting_notes(account: Account, spread_ns: float, recorded: int, largest: int) -> list[str]:
    if not spread_ns:
        return []
    steps = "step" if account.num_steps == 1 else "steps"
    lines = [
        f"last rank: own times of {len(account.run.ranks)} ranks in {account.num_steps} {steps} spread by "
        f"{ms(spread_ns):.3g} ms, taken as normal and independent; the band has {_LEAST_WAIT:g} to {_MOST_WAIT:g} "
        "times that waiting, the range of simulated jobs of 8 to 64 ranks; rare hiccups cost more"
    ]
    if largest > _CHECKED_RANKS * recorded:
        lines.append(f"beyond {_CHECKED_RANKS * recorded} ranks the waiting is extrapolated without a check")
    if account.run.lost > 0:
        lines.append("ranks shared CPU cores while recording: part of their spread is this machine's")
    return lines
