"""The run with several collectives in one call, where the trace does not say how large they are.

Whatever its size, a call takes the latency of the operation: what the shortest of them take. Put together, `together`
calls pay it once, on the network and on the host; the rest of their time stays.
"""

from dataclasses import replace

import numpy as np

from stepscope.analyze.replay.communication_changes import group_items, spare_calls
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.stats.middle import quantiles

_SHORTEST = 0.05
"""quantile of the durations that stands for the latency"""


def fewer_calls(replay: Replay, together: int) -> Replay:
    """Return the run with its group collectives put together by so many."""
    spared = 1 - 1 / together
    programs = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        items = group_items(rank.collectives.op, program)
        if len(items):
            latency = float(quantiles(program.duration_ns[items], _SHORTEST))
            duration = program.duration_ns.astype(float)
            duration[items] = np.maximum(duration[items] - spared * latency, 0)
            shorter = replace(program, duration_ns=np.rint(duration).astype(np.int64))
            program = spare_calls(rank, shorter, items, np.full(len(items), spared))
        programs.append(program)
    return rebuilt(replay, programs)
