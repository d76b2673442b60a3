"""The run without saving its state: copies to the host in a row, and what the host does between and around them.

Training reads single values from the device: a loss, a flag. Many copies to the host with nothing computed between
them are a model or an optimizer on its way to a file. What the host does meanwhile (writing, hashing, packing) is the
same stop, wherever it shows: as a stall, as its own time, as waiting for the copies.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.run.rank import Rank
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind, by_string

MIN_COPIES = 8
"""in a row: fewer are values that the loop reads"""


def state_saves(rank: Rank, program: Program) -> npt.NDArray[np.bool_]:
    """Return which items of a program copy state to the host: runs of such copies with nothing else between them."""
    if not rank.has_device or not len(program):
        return np.zeros(len(program), bool)
    work = rank.work
    to_host = by_string(rank.trace, work.name, lambda s: "DtoH" in s or "DeviceToHost" in s).astype(bool)
    copies = (to_host & (work.kind == EventKind.COPY))[program.device_index]
    run = np.cumsum(~copies)  # copies in a row have the same number as the item before them
    count = np.bincount(run[copies], minlength=int(run.max()) + 1)
    return copies & (count[run] >= MIN_COPIES)


def save_ns(replay: Replay) -> float:
    """Return what saving state takes per step: copies, and the host between them; of the median rank."""
    totals = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        saves = state_saves(rank, program)
        totals.append(float(program.duration_ns[saves].sum() + program.host.own_ns[saves].sum()))
    return median(totals) / max(len(replay.steps), 1) if totals else 0.0


def without_state_saves(replay: Replay) -> Replay:
    """Return the run in which no state is saved."""
    programs = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        saves = state_saves(rank, program)
        programs.append(_without(program, saves) if saves.any() else program)
    return rebuilt(replay, programs)


def _without(program: Program, saves: npt.NDArray[np.bool_]) -> Program:
    """Return a program whose chosen copies take nothing; the host waits neither for them nor before them."""
    by_save = (program.released_by != NOTHING) & saves[np.maximum(program.released_by, 0)]
    host = program.host
    tail = program.tail_released_by
    return replace(
        program,
        duration_ns=np.where(saves, 0, program.duration_ns),
        host=replace(
            host, own_ns=np.where(saves, 0, host.own_ns), stall_ns=np.where(saves | by_save, 0, host.stall_ns)
        ),
        released_by=np.where(saves | by_save, NOTHING, program.released_by),
        tail_released_by=NOTHING if tail != NOTHING and saves[tail] else tail,
    )
