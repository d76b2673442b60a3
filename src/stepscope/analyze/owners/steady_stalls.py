"""In which lines does the host of a CPU rank stall in most steps, and for how long?

Where other programs run on the same cores, the training thread is stopped anywhere: a stall here in one step and there
in another, mostly between the operators of the passes, which take most of the step. What the job itself does comes back
in the same line: the median over steps of each line's stalls, without those inside passes that the line itself calls.
"""

from collections import defaultdict

import numpy as np

from stepscope.analyze.host.time import data_loading, stalling
from stepscope.analyze.owners.line_work import RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.owners.sums import host_waits
from stepscope.analyze.step.regions import loop_in
from stepscope.contract.regions import Region
from stepscope.intervals import covered_ns, subtract, union_of
from stepscope.records import once_per_record

_PASSES = (Region.FORWARD, Region.BACKWARD, Region.OPTIMIZER)


@once_per_record
def steady_stalls(known: RankLines) -> dict[Line, float]:
    """Return what the host stalls in the median step by the user's innermost line, in ns; where it does."""
    owned, rank = known.owned, known.owned.rank
    if not len(rank.steps):
        return {}
    stalls = subtract(stalling(rank), union_of(host_waits(rank), data_loading(rank)))
    host = owned.host
    step = rank.steps.of(host.start_ns)
    anywhere = covered_ns(stalls, host.start_ns, host.end_ns) * host.runs
    outside = covered_ns(subtract(stalls, loop_in(rank, *_PASSES)), host.start_ns, host.end_ns) * host.runs
    by_line: dict[Line, np.ndarray] = defaultdict(lambda: np.zeros(len(rank.steps)))
    for row in np.flatnonzero((anywhere > 0) & (step >= 0) & (host.owner.stack >= 0)).tolist():
        line = owned.stacks.user_line(host.owner.stack[row])
        if line is not None:
            trains = known.lines[line].has_backward or known.lines[line].optimizes
            by_line[line][step[row]] += (outside if trains else anywhere)[row]
    typical = {line: float(np.median(ns)) for line, ns in by_line.items()}
    return {line: ns for line, ns in typical.items() if ns > 0}
