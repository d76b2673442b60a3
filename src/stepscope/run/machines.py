"""Which ranks read the same clock? Those of one machine since its last boot, where the recorder noted it.

Ranks of one machine need no estimate between them, and what is estimated between machines is better for having
several ranks on each side.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.run.clocks import Clocks
from stepscope.run.load import Run

_CONTRADICTED = 3
_SAME_CLOCK_NS = 1_000.0
"""time stamps of two processes on one machine are not better than a microsecond"""


def machine_of_rank(run: Run) -> list[str | None]:
    """Return the boot id of each rank's machine, None where the run's description does not give it."""
    listed = run.description.get("ranks")
    known = listed if isinstance(listed, dict) else {}
    facts = [known.get(str(rank.rank)) for rank in run.ranks]
    ids = [fact.get("boot_id") if isinstance(fact, dict) else None for fact in facts]
    return [found if isinstance(found, str) else None for found in ids]


def one_clock_per_machine(clocks: Clocks, machines: list[str | None]) -> Clocks:
    """Return the clocks with one offset for all ranks of a machine: the median of what each of them gave.

    Where their collectives contradict that (a file was shifted, a clock set), each rank keeps its own estimate.
    """
    offset, uncertainty = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy()
    drift = clocks.drift_ppm.copy()
    agreeing = {m for m in machines if m is not None and _agree(clocks, np.array([other == m for other in machines]))}
    for machine in agreeing:
        mine = np.array([m == machine for m in machines])
        if mine[0]:
            offset[mine], uncertainty[mine], drift[mine] = 0, _SAME_CLOCK_NS, np.nan
        elif (mine & clocks.known).any():
            there = mine & clocks.known
            offset[mine] = round(float(np.median(clocks.offset_ns[there])))
            uncertainty[mine] = np.min(clocks.uncertainty_ns[there])
    known = clocks.known | np.array([m in agreeing and m == machines[0] for m in machines])
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, drift_ppm=drift, known=known)


def _agree(clocks: Clocks, mine: npt.NDArray[np.bool_]) -> bool:
    """Return whether the offsets that the ranks of a machine gave can be one: within thrice what they are sure of."""
    there = mine & clocks.known
    offsets, doubt = clocks.offset_ns[there], clocks.uncertainty_ns[there]
    return not len(offsets) or bool(offsets.max() - offsets.min() <= _CONTRADICTED * doubt.max())
