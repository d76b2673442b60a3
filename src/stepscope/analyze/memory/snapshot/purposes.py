"""What was each block of a snapshot's history for?

By what the job says of its storages (`rank00000.memory.jsonl`) where that was recorded, else by the part of the step
that allocated it and how long it lived:

    weights                 allocated where a module is built or moved to the device, or said so by the job
    gradients               allocated in backward and kept beyond it
    optimizer_state         allocated in the optimizer's step and kept beyond it
    activations             allocated in forward and given back before the next optimizer step ends
    temporaries             given back in the same stretch of forward, backward or optimizer
    communication_buffers   allocated by a process group, by DDP's reducer or FSDP's gathers
    other                   allocated in forward and kept over an optimizer step: inputs, statistics, leaks
    unknown                 there before the history began, and nothing says what it is
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np

from stepscope.analyze.memory.snapshot.replay import NOT_HERE, SMALL, History, rounded
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.pickles.flight_recorder import Frame
from stepscope.trace.pickles.memory_snapshot import ALLOC, FREE, MemorySnapshot
from stepscope.trace.table import Int64s

PURPOSES = (
    *("weights", "gradients", "optimizer_state", "activations", "temporaries", "communication_buffers", "other"),
    "unknown",
)
WEIGHTS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES, COMMUNICATION, OTHER, UNKNOWN = range(len(PURPOSES))
_OF_STORAGE = {"parameters": WEIGHTS, "optimizer": OPTIMIZER_STATE, "buffers": OTHER, "gradients": GRADIENTS}
_OPTIMIZER = "Optimizer.step#"
_BACKWARD = ("torch::autograd::Engine::", "Backward0::", "Backward1::", "AccumulateGrad::", "SavedVariable::reset_data")
_BACKWARD_FILES = ("torch/_tensor.py", "torch/autograd/__init__.py")
_RECOMPUTED = ("torch/utils/checkpoint.py", ("unpack_hook", "recompute_fn", "backward"))
_COMMUNICATION = ("c10d::Reducer", "c10d::ProcessGroup", "ProcessGroupNCCL")
_COMMUNICATION_FILES = ("_fsdp_collectives.py", "distributed_c10d.py", "_functional_collectives.py", "_flat_param.py")
_BUILT = ("convert", "_apply", "to", "cuda", "to_empty", "reset_parameters", "__init__", "__new__")


class Part(IntEnum):
    """The part of the step that an event lies in."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


@dataclass(frozen=True, eq=False, repr=False)
class Purposes(ArrayRecord):
    """What each block was for, and the parts of the history."""

    of_block: Int64s
    part: Int64s
    """of each event"""
    step_ends: Int64s
    """events at which an optimizer step was over"""

    def at(self, history: History, event: int) -> dict[str, int]:
        """Return bytes by purpose right after an event; they sum to what is allocated then."""
        alive = history.alive(event)
        sums = np.bincount(self.of_block[alive], history.size_bytes[alive], minlength=len(PURPOSES))
        return {name: int(sums[code]) for code, name in enumerate(PURPOSES)}

    def over_time(self, history: History) -> Int64s:
        """Return bytes by purpose (rows) after each event (columns)."""
        number = len(history.allocated_bytes)
        change = np.zeros((len(PURPOSES), number + 1), np.int64)
        np.add.at(change, (self.of_block, np.maximum(history.born, 0)), history.size_bytes)
        gone = history.died != NOT_HERE
        np.add.at(change, (self.of_block[gone], history.died[gone]), -history.size_bytes[gone])
        return np.cumsum(change[:, :number], axis=1)


def purposes_of(
    snapshot: MemorySnapshot,
    history: History,
    *,
    storages: Mapping[int, str] | None = None,
    bucket_bytes: Sequence[int] = (),
) -> Purposes:
    """Return what every block was for.

    `storages` has what the job said of the memory at an address, `bucket_bytes` the sizes of DDP's buckets.
    """
    kinds = [_StackKind.of([snapshot.frames[f] for f in stack]) for stack in snapshot.stacks]
    part = _parts(snapshot, kinds)
    stretch = np.concatenate(([0], np.cumsum(part[1:] != part[:-1]))) if len(part) else part
    ends = _step_ends(snapshot, part)
    out = np.full(len(history.size_bytes), UNKNOWN, np.int64)
    for i, (born, died, stack) in enumerate(zip(history.born, history.died, history.stack, strict=True)):
        kind = kinds[stack] if stack >= 0 else _StackKind()
        if born != NOT_HERE and died != NOT_HERE and stretch[born] == stretch[died]:
            out[i] = TEMPORARIES
        elif kind.communicates:
            out[i] = COMMUNICATION
        elif born == NOT_HERE:
            out[i] = _from_before(int(died), part, kind)
        else:
            out[i] = _by_part(int(born), int(died), part, ends, kind)
    said = storages or {}
    for i, (address, died) in enumerate(zip(history.address.tolist(), history.died.tolist(), strict=True)):
        if died == NOT_HERE and address in said:
            out[i] = _OF_STORAGE.get(said[address], out[i])
    out[_buckets(history, out, bucket_bytes)] = COMMUNICATION
    return Purposes(out, part, ends)


def _buckets(history: History, of_block: Int64s, bucket_bytes: Sequence[int]) -> list[int]:
    """Return the blocks that are DDP's buckets: older than the history, nobody's, and of a bucket's rounded size."""
    stays = (history.born == NOT_HERE) & (history.died == NOT_HERE) & (of_block == UNKNOWN)
    sizes = [(int(history.size_bytes[i]), i) for i in np.flatnonzero(stays).tolist()]
    left = iter(sorted(sizes))
    found: list[int] = []
    held, block = next(left, (None, 0))
    for size in map(rounded, sorted(bucket_bytes)):
        while held is not None and held < size:
            held, block = next(left, (None, 0))
        if held is not None and held <= size + SMALL:  # what is left of a free block is split off above that only
            found.append(block)
            held, block = next(left, (None, 0))
    return found


@dataclass(frozen=True)
class _StackKind:
    """What the stack of an allocation tells."""

    python: bool = False
    backward: bool = False
    optimizer: bool = False
    communicates: bool = False
    builds: bool = False

    @classmethod
    def of(cls, frames: list[Frame]) -> "_StackKind":
        names = [f.function for f in frames]
        python = [f for f in frames if f.line > 0 and f.file.endswith(".py")]
        return cls(
            python=bool(python),
            backward=any(mark in name for name in names for mark in _BACKWARD)
            or any(f.function == "backward" and f.file.endswith(_BACKWARD_FILES) for f in python)
            or any(f.function in _RECOMPUTED[1] and f.file.endswith(_RECOMPUTED[0]) for f in python),
            optimizer=any("torch/optim/" in f.file and f.function == "step" for f in python),
            communicates=any(mark in name for name in names for mark in _COMMUNICATION)
            or any(f.file.endswith(_COMMUNICATION_FILES) for f in python),
            builds=any(
                f.function in _BUILT and ("torch/nn/modules/" in f.file or "torch/nn/parameter.py" in f.file)
                for f in python
            ),
        )


def _parts(snapshot: MemorySnapshot, kinds: list[_StackKind]) -> Int64s:
    """Return the part of the step of every event: the optimizer by torch's own notes, backward by its stack.

    Backward runs on threads of its own, whose stacks hold no Python frame, or nothing at all. Where torch keeps stacks
    of allocations only, a free carries that of its block's allocation: it says nothing of where it happened.
    """
    has_python = any(kind.python for kind in kinds)
    intervals = _optimizer_intervals(snapshot)
    begins = [begin for begin, _ in intervals]
    out = np.zeros(len(snapshot.action), np.int64)
    ends = [end for _, end in intervals]
    allocated_by: dict[int, int] = {}
    last, steps_over = Part.FORWARD, 0
    columns = (snapshot.action, snapshot.address, snapshot.stack, snapshot.time_us)
    for i, (action, address, stack, time_us) in enumerate(zip(*columns, strict=True)):
        tells = action == ALLOC
        if tells:
            allocated_by[address] = stack
        elif action == FREE:
            tells = stack >= 0 and allocated_by.pop(address, stack) != stack
        if _within(begins, intervals, time_us):
            last = Part.OPTIMIZER
        elif tells:
            last = _part_of(kinds[stack] if stack >= 0 else _StackKind(), last, has_python=has_python)
        elif bisect_left(ends, time_us) > steps_over:  # a step may have ended without an event of its own
            last = Part.FORWARD
        steps_over = bisect_left(ends, time_us)
        out[i] = last
    return out


def _part_of(kind: _StackKind, last: Part, *, has_python: bool) -> Part:
    """Return the part that an allocation with such a stack lies in; gathers come in forward and in backward."""
    if kind.optimizer:
        return Part.OPTIMIZER
    if kind.backward or (has_python and not kind.python):
        return Part.BACKWARD
    return last if kind.communicates and last != Part.OPTIMIZER else Part.FORWARD


def _step_ends(snapshot: MemorySnapshot, part: Int64s) -> Int64s:
    """Return the last event of each optimizer step: by torch's notes, without them where its events end."""
    noted = [end for _, end in _optimizer_intervals(snapshot)]
    if noted:
        at = np.searchsorted(np.array(snapshot.time_us, np.int64), noted, side="right") - 1
        return at[at >= 0]
    followed = np.append(part[1:] != Part.OPTIMIZER, True)[: len(part)]
    return np.flatnonzero((part == Part.OPTIMIZER) & followed)


def _optimizer_intervals(snapshot: MemorySnapshot) -> list[tuple[int, int]]:
    open_us: int | None = None
    out = []
    for note in snapshot.annotations:
        if note.name.startswith(_OPTIMIZER):
            if note.begins:
                open_us = note.time_us
            elif open_us is not None:
                out.append((open_us, note.time_us))
                open_us = None
    return out


def _within(begins: list[int], intervals: list[tuple[int, int]], time_us: int) -> bool:
    at = bisect_right(begins, time_us) - 1
    return at >= 0 and time_us <= intervals[at][1]


def _from_before(died: int, part: Int64s, kind: _StackKind) -> int:
    if kind.builds:
        return WEIGHTS
    if died == NOT_HERE:
        return UNKNOWN
    return ACTIVATIONS if part[died] == Part.BACKWARD else GRADIENTS if part[died] == Part.FORWARD else UNKNOWN


def _by_part(born: int, died: int, part: Int64s, step_ends: Int64s, kind: _StackKind) -> int:
    if part[born] == Part.OPTIMIZER:
        return OPTIMIZER_STATE
    if part[born] == Part.BACKWARD:
        return GRADIENTS
    if kind.builds:
        return WEIGHTS
    next_end = int(np.searchsorted(step_ends, born))
    survives = next_end < len(step_ends) and (died == NOT_HERE or died > step_ends[next_end])
    return OTHER if survives else ACTIVATIONS
