"""Programs in which ranks are as late as the steps without the profiler show them, not as in the few recorded ones.

A rank's host takes, per step, the median of the others' plus its known lateness. Time that it lacks is added at the
beginning of each step; time that is too much is taken from stalls, then from loading data, then from its own work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from stepscope.analyze.host.time import HostParts
from stepscope.analyze.replay.program import Program
from stepscope.stats.middle import median

_TAKEN_FROM = ("stall_ns", "data_ns", "own_ns")


def as_late_as_known(
    programs: tuple[Program, ...], ranks: Sequence[int], late_ns: Mapping[int, float], *, num_steps: int
) -> tuple[Program, ...]:
    """Return the programs with the known ranks as late as said, per step; ranks without a program stay as they are."""
    times = np.array([_host_ns(p) / num_steps for p in programs])
    others = [i for i, (rank, p) in enumerate(zip(ranks, programs, strict=True)) if rank not in late_ns and len(p)]
    if not late_ns or not others:
        return programs
    usual = median(times[others])
    out = list(programs)
    for i, rank in enumerate(ranks):
        if rank in late_ns and len(programs[i]):
            out[i] = _changed(programs[i], usual + late_ns[rank] - float(times[i]), num_steps)
    return tuple(out)


def _host_ns(program: Program) -> float:
    return float(program.host.total_ns.sum() + program.tail.total_ns.sum())


def _changed(program: Program, more_ns: float, num_steps: int) -> Program:
    if more_ns >= 0:
        stall = program.host.stall_ns.copy()
        stall[np.unique(program.step, return_index=True)[1]] += round(more_ns)
        return replace(program, host=replace(program.host, stall_ns=stall))
    left = -more_ns * num_steps
    for name in _TAKEN_FROM:
        there = float(getattr(program.host, name).sum() + getattr(program.tail, name).sum())
        taken = min(left, there)
        if taken > 0:
            program = _scaled(program, name, 1 - taken / there)
            left -= taken
    return program


def _scaled(program: Program, part: str, factor: float) -> Program:
    def scaled(parts: HostParts) -> HostParts:
        assert part in {f.name for f in fields(parts)}
        return replace(parts, **{part: np.rint(getattr(parts, part) * factor).astype(np.int64)})

    return replace(program, host=scaled(program.host), tail=scaled(program.tail))
