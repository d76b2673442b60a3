"""What does a memory snapshot say: the peak and what is alive at it, by purpose and line, gaps, and what grows?"""

import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise

import numpy as np

from stepscope.analyze.hang import user_frame
from stepscope.analyze.memory import NOT_HERE, bytes_over_time, held_by, largest_moments, leaks
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.trace.flight_recorder import Frame
from stepscope.trace.memory_snapshot import (
    ALLOC,
    FREE,
    FREED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    MemorySnapshot,
)
from stepscope.trace.table import Int64s

# Blocks of the allocator, with their sizes and lifetimes.
#
# The history has the requested sizes; the block's size counts: rounded up to 512 bytes, and larger where the rest of a
# free block was too small to be split off. So the history is replayed with the allocator's own rules
# (c10/cuda/CUDACachingAllocator.cpp: `round_size`, `should_split`, merging of free neighbours). At the end the replay
# has to hold exactly the blocks that the snapshot lists; `differs_bytes` is the difference.

_MIN_BLOCK = 512
_SMALL = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class History(ArrayRecord):
    """Every block of the history, and the totals after each event."""

    #: of each block, as the allocator counts it
    size_bytes: Int64s
    #: event that allocated it, NOT_HERE for before the history
    born: Int64s
    #: event that gave it back, NOT_HERE for not within the history
    died: Int64s
    #: of its allocation, -1 where unknown
    stack: Int64s
    address: Int64s
    #: after each event
    allocated_bytes: Int64s
    #: None where the history does not fit the segments at its end
    reserved_bytes: Int64s | None
    #: allocated before the first event
    before_bytes: int
    #: by which the replay and the snapshot differ at the end
    differs_bytes: int

    def alive(self, event: int) -> np.ndarray:
        """Return which blocks exist right after an event; -1 is before the first."""
        return (self.born <= event) & ((self.died == NOT_HERE) | (self.died > event))


class _Space:
    def __init__(self) -> None:
        self.starts: list[int] = []
        self.size: dict[int, int] = {}
        self.edges: set[int] = set()  # where segments begin and end: nothing merges across

    def give(self, address: int, size: int) -> None:
        at = bisect_right(self.starts, address)
        if size <= 0 or (at and self._end(at - 1) > address):
            return
        if at < len(self.starts) and self.starts[at] < address + size:
            return
        if at and self._end(at - 1) == address and address not in self.edges:
            before = self.starts.pop(at - 1)
            address, size, at = before, self.size.pop(before) + size, at - 1
        if at < len(self.starts) and self.starts[at] == address + size and address + size not in self.edges:
            size += self.size.pop(self.starts.pop(at))
        insort(self.starts, address)
        self.size[address] = size

    def take(self, address: int, wanted: int, *, expandable: bool) -> int:
        at = bisect_right(self.starts, address) - 1
        if at < 0 or self._end(at) <= address:
            return wanted  # from a segment that the history does not show
        start = self.starts.pop(at)
        end = start + self.size.pop(start)
        if start < address:
            insort(self.starts, start)
            self.size[start] = address - start
        rest = end - address - wanted
        split = rest >= _MIN_BLOCK if wanted <= _SMALL or expandable else rest > _SMALL
        size = wanted if split and rest > 0 else end - address
        if address + size < end:
            insort(self.starts, address + size)
            self.size[address + size] = end - address - size
        return size

    def remove(self, address: int, size: int) -> None:
        at = bisect_right(self.starts, address) - 1
        if at < 0 or self._end(at) <= address:
            return
        start = self.starts.pop(at)
        for a, b in ((start, address), (address + size, start + self.size.pop(start))):
            if a < b:
                insort(self.starts, a)
                self.size[a] = b - a

    def _end(self, at: int) -> int:
        return self.starts[at] + self.size[self.starts[at]]


def _rounded(asked_bytes: int) -> int:
    return max(_MIN_BLOCK, -(-asked_bytes // _MIN_BLOCK) * _MIN_BLOCK)


def history_of(snapshot: MemorySnapshot) -> History:
    """Return the blocks and totals of a snapshot's history."""
    older = _blocks_from_before(snapshot)
    space = _space_before(snapshot, older)
    size, born, died, stack, address = columns = tuple(list[int]() for _ in range(5))
    live: dict[int, int] = {}

    def begin(at: int, length: int, event: int, of_stack: int) -> None:
        live[at] = len(size)
        for column, value in zip(columns, (length, event, NOT_HERE, of_stack, at), strict=True):
            column.append(value)

    for at, (length, of_stack) in sorted(older.items()):
        begin(at, length, NOT_HERE, of_stack)
    before_bytes = sum(size)
    change = np.zeros(len(snapshot.action), np.int64)
    reserved = np.zeros(len(snapshot.action), np.int64)
    waiting: dict[int, int] = {}
    rows = zip(snapshot.action, snapshot.address, snapshot.size_bytes, snapshot.stack, strict=True)
    for event, (action, at, asked, of_stack) in enumerate(rows):
        if action == ALLOC:
            length = space.take(at, _rounded(asked), expandable=snapshot.expandable)
            if at in live:  # a damaged history: treat the previous block as freed
                died[live[at]] = event
                change[event] -= size[live[at]]
            begin(at, length, event, of_stack)
            change[event] += length
        elif action == FREE and at in live:
            block = live.pop(at)
            died[block] = event
            change[event] = -size[block]
            waiting[at] = size[block]
        elif action == FREED:
            space.give(at, waiting.pop(at, _rounded(asked)))
        elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
            if action == SEGMENT_ALLOC:
                space.edges |= {at, at + asked}
            space.give(at, asked)
            reserved[event] = asked
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            space.remove(at, asked)
            reserved[event] = -asked
    end = {b.address: b.size_bytes for s in snapshot.segments for b in s.blocks if b.allocated}
    replayed = {at: size[block] for at, block in live.items()}
    differs = sum(abs(end.get(at, 0) - replayed.get(at, 0)) for at in {*end, *replayed})
    allocated = before_bytes + np.cumsum(change)
    held = snapshot.reserved_bytes - int(reserved.sum()) + np.cumsum(reserved)
    return History(
        size_bytes=np.array(size, np.int64),
        born=np.array(born, np.int64),
        died=np.array(died, np.int64),
        stack=np.array(stack, np.int64),
        address=np.array(address, np.int64),
        allocated_bytes=allocated,
        reserved_bytes=held if (held >= allocated).all() else None,
        before_bytes=before_bytes,
        differs_bytes=differs,
    )


def _blocks_from_before(snapshot: MemorySnapshot) -> dict[int, tuple[int, int]]:
    """Return size and stack of the blocks that were there before the first event, by address.

    Those still there at the end are listed by the snapshot; of those freed in the history only the requested size is
    known, so a rest that would not have been split off counts as part of them.
    """
    first_action: dict[int, tuple[int, int]] = {}
    for action, at, asked in zip(snapshot.action, snapshot.address, snapshot.size_bytes, strict=True):
        if action in (ALLOC, FREE):
            first_action.setdefault(at, (action, asked))
    older = {
        b.address: (b.size_bytes, b.stack)
        for s in snapshot.segments
        for b in s.blocks
        if b.allocated and b.address not in first_action
    }
    freed = {at: _rounded(asked) for at, (action, asked) in first_action.items() if action == FREE}
    edges = sorted({*older, *freed, *(s.address + s.size_bytes for s in snapshot.segments)})
    for at, wanted in freed.items():
        after = bisect_right(edges, at)
        rest = edges[after] - at - wanted if after < len(edges) else 0
        kept = 0 < rest < _MIN_BLOCK if wanted <= _SMALL or snapshot.expandable else 0 < rest <= _SMALL
        older[at] = (wanted + rest if kept else wanted, -1)
    return older


def _space_before(snapshot: MemorySnapshot, older: dict[int, tuple[int, int]]) -> _Space:
    space = _Space()
    new = {
        at
        for action, at in zip(snapshot.action, snapshot.address, strict=True)
        if action in (SEGMENT_ALLOC, SEGMENT_MAP)
    }
    starts = sorted(older)
    for segment in snapshot.segments:
        if segment.address in new:
            continue
        end = segment.address + segment.size_bytes
        space.edges |= {segment.address, end}
        at = segment.address
        for start in starts[bisect_right(starts, segment.address - 1) : bisect_right(starts, end - 1)]:
            if start > at:
                space.give(at, start - at)
            at = max(at, start + older[start][0])
        if at < end:
            space.give(at, end - at)
    return space


# Purpose of each block.
#
# By the job's own labels of its storages (`rank00000.memory.jsonl`) if recorded, else by the part of the step
# that allocated it and how long it lived:
#
#     weights                 allocated where a module is built or moved to the device, or labelled so by the job
#     gradients               allocated in backward and alive beyond it
#     optimizer_state         allocated in the optimizer's step and alive beyond it
#     activations             allocated in forward and given back before the next optimizer step ends
#     temporaries             given back in the same stretch of forward, backward or optimizer
#     communication_buffers   allocated by a process group, by DDP's reducer or FSDP's gathers
#     other                   allocated in forward and alive after an optimizer step: inputs, statistics, leaks
#     unknown                 there before the history began, and of unknown use

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
    """The part of the step of an event."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


@dataclass(frozen=True, eq=False, repr=False)
class Purposes(ArrayRecord):
    """What each block was for, and the parts of the history."""

    of_block: Int64s
    #: of each event
    part: Int64s
    #: events at which an optimizer step was over
    step_ends: Int64s

    def at(self, history: History, event: int) -> dict[str, int]:
        """Return bytes by purpose right after an event; they sum to what is allocated then."""
        alive = history.alive(event)
        sums = np.bincount(self.of_block[alive], history.size_bytes[alive], minlength=len(PURPOSES))
        return {name: int(sums[code]) for code, name in enumerate(PURPOSES)}

    def over_time(self, history: History) -> Int64s:
        """Return bytes by purpose (rows) after each event (columns)."""
        blocks = history.born, history.died, history.size_bytes
        return bytes_over_time(self.of_block, len(PURPOSES), *blocks, len(history.allocated_bytes))


def purposes_of(
    snapshot: MemorySnapshot,
    history: History,
    *,
    storages: Mapping[int, str] | None = None,
    bucket_bytes: Sequence[int] = (),
) -> Purposes:
    """Return what every block was for.

    `storages` has the job's own labels of memory by address, `bucket_bytes` the sizes of DDP's buckets.
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
    stays = (history.born == NOT_HERE) & (history.died == NOT_HERE) & (of_block == UNKNOWN)
    left = iter(sorted([(int(history.size_bytes[i]), i) for i in np.flatnonzero(stays).tolist()]))
    found: list[int] = []
    held, block = next(left, (None, 0))
    for size in map(_rounded, sorted(bucket_bytes)):
        while held is not None and held < size:
            held, block = next(left, (None, 0))
        if held is not None and held <= size + _SMALL:  # what is left of a free block is split off above that only
            found.append(block)
            held, block = next(left, (None, 0))
    return found


@dataclass(frozen=True)
class _StackKind:
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

    Backward runs on its own threads, whose stacks hold no Python frame, or nothing at all. Where torch records stacks
    of allocations only, a free carries that of its block's allocation, which does not show where it happened.
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
        at = bisect_right(begins, time_us) - 1
        if at >= 0 and time_us <= intervals[at][1]:
            last = Part.OPTIMIZER
        elif tells:
            last = _part_of(kinds[stack] if stack >= 0 else _StackKind(), last, has_python=has_python)
        elif bisect_left(ends, time_us) > steps_over:  # a step may have ended without an event
            last = Part.FORWARD
        steps_over = bisect_left(ends, time_us)
        out[i] = last
    return out


def _part_of(kind: _StackKind, last: Part, *, has_python: bool) -> Part:
    if kind.optimizer:
        return Part.OPTIMIZER
    if kind.backward or (has_python and not kind.python):
        return Part.BACKWARD
    return last if kind.communicates and last != Part.OPTIMIZER else Part.FORWARD


def _step_ends(snapshot: MemorySnapshot, part: Int64s) -> Int64s:
    noted = [end for _, end in _optimizer_intervals(snapshot)]
    if noted:
        at = np.searchsorted(np.array(snapshot.time_us, np.int64), noted, side="right") - 1
        return at[at >= 0]
    return np.flatnonzero((part == Part.OPTIMIZER) & np.append(part[1:] != Part.OPTIMIZER, True)[: len(part)])


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


_NODE = re.compile(r"(\w{1,100}Backward\d{0,3}|AccumulateGrad)::(?:apply|release_variables)")
_BEFORE = "(before the history)"
# lines that get a curve of their own
_MAX_OWNERS = 7
_NO_FRAMES = "(no stack recorded)"


def snapshot_view(
    snapshot: MemorySnapshot, *, storages: Mapping[int, str] | None = None, bucket_bytes: Sequence[int] = ()
) -> Row:
    """Return the analysis of a snapshot.

    `storages` has the job's own labels of memory by address, `bucket_bytes` the sizes of DDP's buckets.
    """
    history = history_of(snapshot)
    storages, bucket_bytes = snapshot.storages or storages, snapshot.bucket_bytes or bucket_bytes
    purposes = purposes_of(snapshot, history, storages=storages, bucket_bytes=bucket_bytes)
    places = _block_places(snapshot, history)
    last, allocated = len(snapshot.action) - 1, history.allocated_bytes
    peak = int(allocated.argmax()) if last >= 0 else NOT_HERE
    at, step_ends = largest_moments(allocated), purposes.step_ends.tolist()
    free = [b.size_bytes for s in snapshot.segments for b in s.blocks if not b.allocated]
    reasons = _reasons(snapshot, history, purposes, storages)
    totals = {"allocated_bytes": allocated, "reserved_bytes": history.reserved_bytes}
    return Row(
        path=snapshot.path,
        device=snapshot.device,
        num_events=len(snapshot.action),
        num_segments=len(snapshot.segments),
        # within the history; the process may have had more before it
        peak=_moment(snapshot, history, purposes, places, peak, reasons),
        end=_moment(snapshot, history, purposes, places, last, reasons),
        free_bytes=sum(free),  # reserved, held by no tensor
        largest_free_bytes=max(free, default=0),
        # share of the free memory that no single request could use; None where nothing is free
        fragmentation=1 - max(free) / sum(free) if sum(free) else None,
        # of segments without any tensor: emptying the cache gives them back
        unused_segment_bytes=sum(s.size_bytes for s in snapshot.segments if not any(b.allocated for b in s.blocks)),
        gaps=_gaps(snapshot),
        step_end_bytes=allocated[step_ends].tolist(),  # when each optimizer step of the history was over
        step_peak_bytes=[int(allocated[a : b + 1].max()) for a, b in pairwise([0, *step_ends])],
        leaks=_leaks(history, purposes, places),
        timeline={
            "time_us": [snapshot.time_us[i] - snapshot.time_us[0] for i in at],
            **{name: curve[at].tolist() for name, curve in totals.items() if curve is not None},
        },
        # at the moments of `timeline`; None is unknown, and then part of `unknown`
        by_purpose={
            name: None if name in reasons and not curve.any() else curve.tolist()
            for name, curve in zip(PURPOSES, purposes.over_time(history)[:, at], strict=True)
        },
        by_owner=_owner_curves(history, places, peak, at),
        phases=[Part(part).name.lower() for part in purposes.part[at].tolist()],
        out_of_memory=_out_of_memory(snapshot, history, purposes, places, reasons),
        reasons=reasons,
    )


def _out_of_memory(
    snapshot: MemorySnapshot, history: History, purposes: Purposes, places: Sequence[str], reasons: Mapping[str, str]
) -> Row | None:
    """Return the request that failed and what was alive then; None where none did."""
    error = snapshot.out_of_memory
    if error is None:
        return None
    moment = _moment(snapshot, history, purposes, places, error.event - 1, reasons)
    frames = [snapshot.frames[f] for f in snapshot.stacks[error.stack]] if error.stack >= 0 else []
    kind, free = _StackKind.of(frames), error.free_bytes
    largest = max((b.size_bytes for s in snapshot.segments for b in s.blocks if not b.allocated), default=0)
    part = _part_of(kind, Part.FORWARD, has_python=False)
    by_part = (WEIGHTS if kind.builds else ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE)
    reserved = snapshot.reserved_bytes if moment.reserved_bytes is None else moment.reserved_bytes
    return Row(
        moment,
        requested_bytes=error.requested_bytes,
        place=_place(frames) if frames else None,
        module=error.module,
        # of the request, by its stack
        purpose=PURPOSES[COMMUNICATION if kind.communicates else by_part[part]] if frames else None,
        phase=part.name.lower(),
        device_free_bytes=free,
        largest_free_bytes=largest,
        limit_bytes=error.limit_bytes,
        # what it holds and what the device has left: more than this it cannot have
        reachable_bytes=None if free is None else reserved + free,
        missing_bytes=None if free is None else max(0, error.requested_bytes - max(free, largest)),
        expandable=snapshot.expandable,
        has_whole_step=bool(len(purposes.step_ends) and purposes.step_ends[0] < error.event),
    )


def _moment(
    snapshot: MemorySnapshot,
    history: History,
    purposes: Purposes,
    places: Sequence[str],
    event: int,
    reasons: Mapping[str, str],
) -> Row:
    known, alive = event >= 0, np.flatnonzero(history.alive(event))
    allocated = int(history.allocated_bytes[event]) if known else snapshot.allocated_bytes
    reserved: int | None = snapshot.reserved_bytes
    if known and event < len(snapshot.action) - 1:
        reserved = None if history.reserved_bytes is None else int(history.reserved_bytes[event])
    sums, size = purposes.at(history, event), history.size_bytes[alive]
    most = Counter[tuple[str, int]]()
    for i in alive.tolist():
        most[places[i], int(purposes.of_block[i])] += int(history.size_bytes[i])
    purpose = {place: PURPOSES[code] for (place, code), _ in reversed(most.most_common())}
    lines = held_by("place", [places[i] for i in alive.tolist()], size, most=15)
    return Row(
        event=event,
        time_us=snapshot.time_us[event] if known else None,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        # None is unknown, and then part of `unknown`; all but `reserved_unused` sum to what is allocated
        by_purpose={
            **{name: sums[name] or (None if name in reasons else 0) for name in PURPOSES},
            "reserved_unused": None if reserved is None else reserved - allocated,
        },
        by_line=[Row(line, purpose=purpose[line.place]) for line in lines],  # with what most of it is for
    )


def _owner_curves(history: History, places: Sequence[str], peak: int, at: Int64s) -> dict[str, list[int]]:
    """Return what the lines with most at the peak hold at some moments, and `other`."""
    if not len(at):
        return {}
    alive = np.flatnonzero(history.alive(peak))
    held = held_by("place", [places[i] for i in alive.tolist()], history.size_bytes[alive], most=_MAX_OWNERS)
    names = [*(line.place for line in held), "other"]
    codes = {name: code for code, name in enumerate(names)}
    of_block = np.array([codes.get(place, len(names) - 1) for place in places], np.int64)
    blocks = history.born, history.died, history.size_bytes
    curves = bytes_over_time(of_block, len(names), *blocks, len(history.allocated_bytes))[:, at]
    return {name: curve.tolist() for name, curve in zip(names, curves, strict=True) if curve.any()}


def _block_places(snapshot: MemorySnapshot, history: History) -> list[str]:
    """Return the line that allocated each block, such as `train.py:42 (forward)`."""
    places = [_place([snapshot.frames[f] for f in stack]) for stack in snapshot.stacks]
    return [
        places[stack] if stack >= 0 else _BEFORE if born == NOT_HERE else _NO_FRAMES
        for stack, born in zip(history.stack.tolist(), history.born.tolist(), strict=True)
    ]


def _place(frames: list[Frame]) -> str:
    own = user_frame([f for f in frames if f.file.endswith(".py")])
    if own is not None:
        return f"{own.file}:{own.line} ({own.function})"
    node = next((found for f in frames if (found := _NODE.search(f.function))), None)
    return f"backward: {node[1]}" if node else _NO_FRAMES


def _gaps(snapshot: MemorySnapshot) -> list[Row]:
    """Return the largest pieces of free memory between blocks, which only a smaller request can use."""
    found = [
        Row(size_bytes=b.size_bytes, segment_bytes=s.size_bytes, address=b.address)
        for s in snapshot.segments
        if any(b.allocated for b in s.blocks)
        for b in s.blocks
        if not b.allocated
    ]
    return sorted(found, key=lambda gap: -gap.size_bytes)[:8]


def _leaks(history: History, purposes: Purposes, places: Sequence[str]) -> list[Row]:
    step = np.searchsorted(purposes.step_ends, history.born)
    suspects = (history.born != NOT_HERE) & (history.stack >= 0) & (purposes.of_block == OTHER)
    rows = np.flatnonzero(suspects & (step < len(purposes.step_ends)))
    names = [places[i] for i in rows.tolist()]
    return leaks("place", names, step[rows], history.size_bytes[rows], history.died[rows] == NOT_HERE)


def _reasons(
    snapshot: MemorySnapshot, history: History, purposes: Purposes, storages: Mapping[int, str] | None
) -> dict[str, str]:
    if not len(snapshot.action):
        why = "the snapshot has no history: record with torch.cuda.memory._record_memory_history()"
        return {name: why for name in PURPOSES if name != "unknown"}
    reasons = {}
    if history.before_bytes and not storages:
        for name in ("weights", "optimizer_state"):
            if not (purposes.of_block == PURPOSES.index(name)).any():
                reasons[name] = (
                    "it was there before the history began, as part of `unknown`; "
                    "stepscope record --memory attributes it"
                )
    if history.differs_bytes:
        reasons["replay"] = (
            f"the replayed history ends {history.differs_bytes:,} bytes away from the snapshot: moments before its end "
            "may be off by that"
        )
    if history.reserved_bytes is None:
        reasons["reserved_unused"] = "segments of the history and of the snapshot do not fit together"
    if snapshot.lost_events:
        reasons["events"] = f"{snapshot.lost_events:,} events could not be read"
    if not len(purposes.step_ends):
        reasons["growth"] = "no optimizer step was seen in the history"
    return reasons
