"""The run with each chain of kernels fused into one: one launch, and one pass over memory."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.replay.changes import Chosen, programs_with_times
from stepscope.analyze.replay.replay import Replay, rebuilt


def fused_chains(replay: Replay, chosen: Chosen, times_ns: Sequence[npt.NDArray[np.float64]], leads: Chosen) -> Replay:
    """Return the run in which chosen kernels take other times, and only those in `leads` are still launched.

    All three are given per rank over the rows of its DeviceWork.
    """
    shorter = programs_with_times(replay, chosen, times_ns)
    programs = []
    for program, mask, lead, rank in zip(shorter, chosen, leads, replay.shared.run.ranks, strict=True):
        if not rank.has_device:
            programs.append(program)
            continue
        gone = (mask & ~lead)[program.device_index]
        own_ns = np.where(gone, 0, program.host.own_ns)
        programs.append(replace(program, host=replace(program.host, own_ns=own_ns)))
    return rebuilt(replay, programs)
