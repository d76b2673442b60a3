"""What if nobody waited for copies? They take no time, and the host goes on when it has asked for one.

Those that follow one another are one: what the host does between two copies is for the second.

The host waits for a copy inside the operator that asks for it: where the source is pageable memory, and where
`non_blocking=True` was not said. What it waits for there is all that was launched before, not the copy alone.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.time import blocking_calls
from stepscope.analyze.replay.changes import Chosen
from stepscope.analyze.replay.program import Program, without_calls
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.records import once_per_record
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.table import Int64s

Mask = npt.NDArray[np.bool_]


@once_per_record
def copies_to_device(rank: Rank) -> Mask:
    """Return which rows of a rank's work copy from the host to the device."""
    named = by_string(rank.trace, rank.work.name, lambda s: "HtoD" in s or "HostToDevice" in s).astype(bool)
    return named & (rank.work.kind == EventKind.COPY)


def hidden_copies(replay: Replay, copies: Chosen) -> Replay:
    """Return the run in which these copies take nothing, and the host waits for none that goes to the device."""
    ranks = replay.shared.run.ranks
    programs = []
    for rank, program, mask in zip(ranks, without_waits(replay), copies, strict=True):
        items = mask[program.device_index] if rank.has_device else np.zeros(len(program), bool)
        further = items & np.append(False, items[:-1])[: len(items)]
        host = replace(program.host, own_ns=np.where(further, 0, program.host.own_ns))
        programs.append(replace(program, host=host, duration_ns=np.where(items, 0, program.duration_ns)))
    return rebuilt(replay, programs)


def without_waits(replay: Replay) -> list[Program]:
    """Return the programs in which the host does not wait for copies to the device."""
    ranks = replay.shared.run.ranks
    return [
        without_calls(program, rank, replay.steps, _waiting_calls(rank)) if rank.has_device else program
        for rank, program in zip(ranks, replay.programs, strict=True)
    ]


@once_per_record
def _waiting_calls(rank: Rank) -> Int64s:
    """Return the synchronising calls that make copies to the device, or lie in the operators that ask for them."""
    copies, calls = copies_to_device(rank), np.sort(blocking_calls(rank, synchronisations_only=True)[2])
    launches, operators = rank.work.launch_row[copies], rank.work.op_row[copies]
    mine = among(calls, distinct(launches)) | (enclosing(rank.trace, distinct(operators[operators >= 0]), calls) >= 0)
    return calls[mine]
