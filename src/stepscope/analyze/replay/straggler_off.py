"""The run in which a late rank is as fast as its peers.

Ranks of one job mostly run the same program. Then the late rank takes, item by item, what a median peer takes for
the same item: the lateness goes from where it was. Items that no peer has (the work of whatever made it late) take
nothing. Where programs differ too much to be laid side by side (stages of a pipeline), the late rank is shortened
evenly, part by part.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.time import HostParts
from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.run.rank import Rank
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

_SAME_PROGRAM = 0.75
"""of the items of both ranks have a counterpart"""


def straggler_off(replay: Replay, ranks: Sequence[int]) -> Replay:
    """Return the run in which the named ranks are as fast as the median of the others, host and device."""
    every = replay.shared.run.ranks
    late = {i for i, r in enumerate(every) if r.rank in set(ranks)}
    peers = [i for i, p in enumerate(replay.programs) if i not in late and len(p)]
    if not late or not peers:
        return replay
    programs = list(replay.programs)
    for i in late:
        programs[i] = _like_peers(replay, i, peers)
    return rebuilt(replace(replay, recurring=replay.recurring.with_ranks_like_others(ranks)), programs)


def _like_peers(replay: Replay, late: int, peers: Sequence[int]) -> Program:
    """Return the late rank's program with the times of its peers."""
    program, ranks = replay.programs[late], replay.shared.run.ranks
    host = _median_peer(replay.programs, peers, _host_ns)
    device = _median_peer(replay.programs, peers, compute_ns)
    as_host = _counterparts(ranks[late], program, ranks[host], replay.programs[host])
    as_device = _counterparts(ranks[late], program, ranks[device], replay.programs[device])
    if as_host is None or as_device is None:
        return _shortened(program, [replay.programs[p] for p in peers])
    slow, fast = replay.programs[host], replay.programs[device]
    return replace(
        program,
        host=HostParts(*(_taken(getattr(slow.host, f.name), as_host) for f in fields(HostParts))),
        tail=slow.tail,
        duration_ns=np.where(program.collective == NOTHING, _taken(fast.duration_ns, as_device), program.duration_ns),
        queued_gap_ns={**program.queued_gap_ns, **fast.queued_gap_ns},
    )


def _taken(values: Int64s, counterpart: Int64s) -> Int64s:
    """Return a peer's values for the items of the late rank; 0 for those without a counterpart."""
    return np.where(counterpart >= 0, values[np.maximum(counterpart, 0)], 0)


def _median_peer(programs: Sequence[Program], peers: Sequence[int], time_ns: Callable[[Program], float]) -> int:
    """Return the peer in the middle by some time; of two in the middle the slower one."""
    return sorted(peers, key=lambda i: time_ns(programs[i]))[len(peers) // 2]


def _host_ns(program: Program) -> float:
    return float(program.host.total_ns.sum() + program.tail.total_ns.sum())


def compute_ns(program: Program) -> float:
    """Return what the work of a program takes that is not communication."""
    return float(program.duration_ns[program.kind != EventKind.COMM_KERNEL].sum())


def _counterparts(rank: Rank, program: Program, other_rank: Rank, other: Program) -> Int64s | None:
    """Return for each item the other rank's item of the same step and name, the k-th for the k-th; NOTHING for none.

    None where the two ranks do not run the same program.
    """
    if not len(program) or not len(other):
        return None
    mine, theirs = _names(rank, program), _names(other_rank, other)
    _, both = np.unique(np.concatenate((mine, theirs)), return_inverse=True)
    mine_key = _nth(both[: len(mine)], program.step)
    their_key = _nth(both[len(mine) :], other.step)
    _, key = np.unique(np.concatenate((mine_key, their_key)), axis=0, return_inverse=True)
    key = key.reshape(-1)
    at = np.full(int(key.max()) + 1, NOTHING, np.int64)
    at[key[len(mine) :]] = np.arange(len(other))
    found = at[key[: len(mine)]]
    share = (found >= 0).sum() / max(len(program), len(other))
    return found if share >= _SAME_PROGRAM else None


def _names(rank: Rank, program: Program) -> npt.NDArray[np.str_]:
    """Return what each item is called."""
    if not rank.has_device:
        return rank.collectives.op[program.device_index].astype(str)
    name = rank.work.name[program.device_index]
    used, at = np.unique(name, return_inverse=True)
    return np.array([rank.trace.strings[i] for i in used.tolist()])[at.reshape(-1)]


def _nth(name: Int64s, step: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return rows `(step, name, how many of that name came before in the step)`."""
    group = step.astype(np.int64) * (int(name.max()) + 1) + name
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    fresh = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(group)), 0))
    nth = np.empty(len(group), np.int64)
    nth[order] = np.arange(len(group)) - first
    return np.stack((group, nth), axis=1)


def _shortened(program: Program, peers: Sequence[Program]) -> Program:
    """Return a program shortened, part by part, to the median of its peers."""
    for name in (f.name for f in fields(HostParts)):
        usual, own = median([host_part_ns(p, name) for p in peers]), host_part_ns(program, name)
        if own > usual:
            program = host_part_scaled(program, name, usual / own)
    usual, mine = median([compute_ns(p) for p in peers]), compute_ns(program)
    if mine <= usual:
        return program
    computes = program.kind != EventKind.COMM_KERNEL
    shorter = np.where(computes, np.rint(program.duration_ns * (usual / mine)), program.duration_ns)
    return replace(program, duration_ns=shorter.astype(np.int64))


def host_part_ns(program: Program, part: str) -> float:
    """Return what one part of the host's time takes in all."""
    return float(getattr(program.host, part).sum() + getattr(program.tail, part).sum())


def host_part_scaled(program: Program, part: str, factor: float) -> Program:
    """Return a program in which one part of the host's time takes `factor` times as long."""

    def scaled(parts: HostParts) -> HostParts:
        return replace(parts, **{part: np.rint(getattr(parts, part) * factor).astype(np.int64)})

    return replace(program, host=scaled(program.host), tail=scaled(program.tail))
