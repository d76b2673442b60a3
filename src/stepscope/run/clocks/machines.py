"""Which ranks read the same clock? Those of one machine since its last boot, where the recorder noted it, and those
that one capture of Nsight Systems recorded together.

Ranks of one machine need no estimate between them, and what is estimated between machines is better for having
several ranks on each side.
"""

from dataclasses import replace

import numpy as np

from stepscope.run.clocks.offsets import Clocks
from stepscope.run.imports.second_recording import is_nsight
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.stats.middle import median
from stepscope.trace.table import Int64s

_CONTRADICTED = 3
_SAME_CLOCK_NS = 1_000.0
"""time stamps of two processes on one machine are not better than a microsecond"""


def machine_of_rank(run: Run) -> list[str | None]:
    """Return the boot id of each rank's machine, else the capture that recorded it; None where neither is known."""
    listed = run.description.get("ranks")
    known = listed if isinstance(listed, dict) else {}
    facts = [known.get(str(rank.rank)) for rank in run.ranks]
    ids = [fact.get("boot_id") if isinstance(fact, dict) else None for fact in facts]
    captures = [_capture(rank) for rank in run.ranks]
    return [found if isinstance(found, str) else capture for found, capture in zip(ids, captures, strict=True)]


def _capture(rank: Rank) -> str | None:
    return f"capture {rank.trace.path}" if is_nsight(rank.trace) else None


def one_clock_per_machine(clocks: Clocks, machines: list[str | None]) -> Clocks:
    """Return the clocks with one offset for all ranks of a machine: the median of what each of them gave.

    Where their collectives contradict that (a file was shifted, a clock set), each rank keeps its own estimate.
    """
    offset, uncertainty = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy()
    drift = clocks.drift_ppm.copy()
    for mine in _ranks_of_machines(machines):
        there = mine[clocks.known[mine]]
        if not len(there) or not _agree(clocks, there):
            continue
        if mine[0] == 0:
            offset[there], uncertainty[there], drift[there] = 0, _SAME_CLOCK_NS, np.nan
        else:
            offset[there] = round(median(clocks.offset_ns[there]))
            uncertainty[there] = np.min(clocks.uncertainty_ns[there])
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, drift_ppm=drift)


def _ranks_of_machines(machines: list[str | None]) -> list[Int64s]:
    found: dict[str, list[int]] = {}
    for index, machine in enumerate(machines):
        if machine is not None:
            found.setdefault(machine, []).append(index)
    return [np.array(indices, np.int64) for indices in found.values()]


def _agree(clocks: Clocks, there: Int64s) -> bool:
    """Return whether the offsets that the ranks of a machine gave can be one: within thrice what they are sure of."""
    offsets, doubt = clocks.offset_ns[there], clocks.uncertainty_ns[there]
    return bool(offsets.max() - offsets.min() <= _CONTRADICTED * doubt.max())
