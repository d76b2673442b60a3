"""What does the host spend around collectives, beyond the calls themselves?

A sharded module gathers its parameters, copies them out, and packs and scatters its gradients in hooks that
FullyShardedDataParallel marks (`FSDP::pre_forward`, `FSDP::post_backward_reduce`). They run once per sharded unit, so
messages put together take their hooks with them.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.replay.program import Program
from stepscope.intervals import covered_ns, union
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind

_HOOKS = "FSDP::"


def unit_overhead_ns(rank: Rank, program: Program) -> npt.NDArray[np.float64]:
    """Return for each item how much of the host's own time before it was spent in hooks of sharded units."""
    out = np.zeros(len(program))
    if not rank.has_device or not len(program):
        return out
    hooks = rank.rows_named(lambda s: s.startswith(_HOOKS), EventKind.ANNOTATION, EventKind.HOST_OP)
    if not len(hooks):
        return out
    start = rank.trace["ts_ns"][hooks]
    launched = rank.trace["ts_ns"][rank.work.launch_row[program.device_index]]
    before = np.concatenate((launched[:1], launched[:-1]))
    inside = covered_ns(union(start, start + rank.trace["dur_ns"][hooks]), before, np.maximum(launched, before))
    return np.minimum(inside, program.host.own_ns).astype(float)
