"""Which blocks of memory were allocated and freed while the profiler watched, and what did that leave at each moment?

Every event says how many bytes at which address, negative for a free, and the allocator's totals after it. An
allocation and the next free at its address are one block. Blocks can begin before the window and end after it.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_calls import HostCalls, call_stacks
from stepscope.analyze.phases import Passes, Phase, Phases
from stepscope.contract.step_line import EVALUATE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.steps import Steps
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, of_kinds, rows_named
from stepscope.trace.table import Int64s

NOT_HERE = -1
_HOST = 0


@dataclass(frozen=True, eq=False, repr=False)
class MemoryEvents(ArrayRecord):
    """Allocations and frees on one device of one rank, by time."""

    #: in the event table
    row: Int64s
    time_ns: Int64s
    thread: Int64s
    change_bytes: Int64s
    #: None where it was not recorded: then blocks cannot be told
    address: Int64s | None
    #: after the event
    allocated_bytes: Int64s
    #: after the event; None where it was not recorded
    reserved_bytes: Int64s | None
    #: allocated before the first event; None where the totals were not recorded and `allocated_bytes` is relative.
    #: Of the host it is what the profiler itself saw allocated: it counts from its own start, and nothing from before
    before_bytes: int | None
    #: device ordinal, -1 for the host
    device: int

    def __len__(self) -> int:
        return len(self.row)

    @property
    def on_host(self) -> bool:
        """Return whether these are of the host's memory, whose totals leave out what was there before the profiler."""
        return self.device < 0

    def on_top_of(self, size_bytes: int) -> "MemoryEvents":
        """Return the events with so much more there from before the first of them."""
        if self.before_bytes is None or not size_bytes:
            return self
        allocated = self.allocated_bytes + size_bytes
        return replace(self, allocated_bytes=allocated, before_bytes=self.before_bytes + size_bytes)


def largest_moments(allocated_bytes: Int64s) -> Int64s:
    """Return the events with the largest total in each of at most 400 equal slices of all events."""
    total = len(allocated_bytes)
    cuts = distinct(np.linspace(0, total, min(400, total) + 1).astype(int))
    return np.array([a + int(allocated_bytes[a:b].argmax()) for a, b in pairwise(cuts)], np.int64)


def bytes_over_time(
    code: npt.NDArray[np.integer], codes: int, born: Int64s, died: Int64s, size_bytes: Int64s, events: int
) -> Int64s:
    """Return the bytes held by code (rows) after each event (columns); blocks from before are there from the first."""
    change = np.zeros((codes, events + 1), np.int64)
    np.add.at(change, (code, np.maximum(born, 0)), size_bytes)
    freed = died != NOT_HERE
    np.add.at(change, (code[freed], died[freed]), -size_bytes[freed])
    return np.cumsum(change[:, :-1], axis=1)


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(ArrayRecord):
    """One row per block that an event belongs to."""

    size_bytes: Int64s
    #: event that allocated it, NOT_HERE for before the window
    born: Int64s
    #: event that freed it, NOT_HERE for not within the window
    died: Int64s

    def __len__(self) -> int:
        return len(self.size_bytes)

    def alive(self, event: int) -> npt.NDArray[np.bool_]:
        """Return which blocks exist right after an event."""
        return (self.born <= event) & ((self.died == NOT_HERE) | (self.died > event))


def _memory_events(rank: Rank) -> MemoryEvents | None:
    trace = rank.trace
    rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.MEMORY,)))
    rows = rows[trace.arg("alloc_bytes").at(rows, missing=0) != 0]
    if not len(rows):
        return None
    kind = trace.arg("alloc_device_type").at(rows, missing=_HOST)
    ordinal = np.where(kind == _HOST, -1, trace.arg("alloc_device").at(rows, missing=0))
    devices, events = np.unique(ordinal[ordinal >= 0], return_counts=True)
    device = int(devices[events.argmax()]) if len(devices) else -1
    rows = rows[ordinal == device]
    number = trace.arg("ev_idx").at(rows, missing=0)  # tells the order of events of one moment
    rows = rows[np.lexsort((number, trace["ts_ns"][rows]))]
    change = trace.arg("alloc_bytes").at(rows, missing=0)
    total, reserved = (trace.arg(name).at(rows, missing=-1) for name in ("total_allocated", "total_reserved"))
    address = trace.arg("alloc_addr").at(rows, missing=0)
    known = bool((total >= 0).all())
    running = np.cumsum(change)
    return MemoryEvents(
        row=rows,
        time_ns=trace["ts_ns"][rows],
        thread=trace["tid"][rows],
        change_bytes=change,
        address=address if address.all() else None,
        allocated_bytes=total if known else running - min(int(running.min()), 0),
        reserved_bytes=reserved if device >= 0 and bool((reserved >= 0).all()) else None,
        before_bytes=int(total[0] - change[0]) if known else None,
        device=device,
    )


def blocks_of(events: MemoryEvents) -> Blocks | None:
    """Return the blocks, each allocation joined to the next free at its address; None without addresses."""
    if events.address is None:
        return None
    order = np.lexsort((np.arange(len(events)), events.address))
    address, change = events.address[order], events.change_bytes[order]
    same = np.append(address[1:] == address[:-1], False)
    births = change > 0
    joined = births & same & np.append(change[1:] < 0, False)
    orphans = ~births & ~np.concatenate(([False], joined[:-1]))
    born = np.concatenate((order[births], np.full(int(orphans.sum()), NOT_HERE)))
    death = np.where(joined, np.append(order[1:], NOT_HERE), NOT_HERE)
    died = np.concatenate((death[births], order[orphans]))
    return Blocks(np.abs(np.concatenate((change[births], change[orphans]))), born, died)


# Operator and user line of the host at a moment.

NOBODY = -1
_FRAME = re.compile(r"^(?P<path>[^<(][^(]*)\(\d+\): ")
_LIBRARIES = re.compile(r"(^|/)(torch|site-packages|dist-packages|lightning|accelerate|transformers|deepspeed)/")


@dataclass(frozen=True)
class Holder:
    """What one operator or line holds at a moment."""

    name: str
    size_bytes: int
    blocks: int


def operators_at(calls: HostCalls, thread: Int64s, moment_ns: Int64s) -> Int64s:
    """Return the string id of the outermost operator at each moment, NOBODY where there was none."""
    at = calls.innermost_at(thread, moment_ns)
    if not len(calls):
        return at
    while (inner := (at >= 0) & (calls.parent[at] >= 0)).any():
        at[inner] = calls.parent[at[inner]]
    return np.where(at >= 0, calls.name[at], NOBODY)


def source_lines_at(rank: Rank, thread: Int64s, moment_ns: Int64s) -> Int64s:
    """Return the string id of the innermost frame of the user's code at each moment, NOBODY where there was none."""
    frames = call_stacks(rank.trace, rows_named(rank.trace, np.flatnonzero(rank.kinds == EventKind.PYTHON), _is_users))
    at = frames.innermost_at(thread, moment_ns)
    return np.where(at >= 0, frames.name[at], NOBODY) if len(frames) else at


def holders(rank: Rank, name_id: Int64s, size_bytes: Int64s, *, most: int) -> tuple[Holder, ...]:
    """Return what each name holds, the largest first; blocks of nobody are left out."""
    known = name_id != NOBODY
    ids, back, count = np.unique(name_id[known], return_inverse=True, return_counts=True)
    held = np.bincount(back, size_bytes[known], minlength=len(ids))
    order = np.argsort(-held, kind="stable")[:most]
    return tuple(Holder(readable(rank.trace.strings[ids[i]]), int(held[i]), int(count[i])) for i in order)


def readable(operator: str) -> str:
    """Return an operator's name without what the autograd engine puts before it."""
    return operator.removeprefix(f"{EVALUATE}: ")


def _is_users(frame: str) -> bool:
    found = _FRAME.match(frame)
    if not found or _LIBRARIES.search(found["path"]) or not found["path"].endswith(".py"):
        return False
    return found["path"].split("/")[0].removesuffix(".py") not in sys.stdlib_module_names


# Memory from before the window: weights, optimizer state, DDP buckets.
#
# The trace does not tell; the job's own account of its model and optimizer does (`run.json`,
# `rank00000.memory.jsonl`).
# Where neither was recorded both are unknown, and all of it is `kept`. State that the optimizer creates within the
# window
# is known by itself; a few bytes that it creates there while the state is older are no state, and never a state of 0.

# of the weights (of the gradients where those are unknown), below which what was created is not all of the state
_MIN_STATE = 0.1
_WHY = "created before the window, so it is part of `kept`; record with --memory to have it apart"
_WHY_ON_HOST = "there before the profiler, which counts the host's memory from its own start; record with --memory"


@dataclass(frozen=True)
class FromBefore:
    """What is known of the memory from before the window; None is unknown."""

    weights_bytes: int | None = None
    optimizer_bytes: int | None = None
    #: DDP's buckets; where nobody counted them they are part of `kept`
    communication_bytes: int | None = None
    #: whether what was kept is all that was there; the host's totals leave out what is older than the profiler
    seen_whole: bool = True

    @property
    def is_known(self) -> bool:
        """Return whether the totals together with what was counted hold all of weights and state."""
        return self.seen_whole or (self.weights_bytes is not None and self.optimizer_bytes is not None)

    def split(self, curves: Mapping[str, Int64s], kept_bytes: int) -> dict[str, Int64s | None]:
        """Return curves by category with what was kept taken apart; what is not None sums to the same."""
        created = curves["optimizer_state"]
        weights = None if self.weights_bytes is None else min(self.weights_bytes, kept_bytes)
        left = kept_bytes - (weights or 0)
        older = self._older_state(curves, kept_bytes, left)
        parts: dict[str, Int64s | None] = {"weights": _constant(weights, created), **curves}
        if older is None:
            parts |= {"optimizer_state": None, "other": curves["other"] + created}
        else:
            parts["optimizer_state"] = created + older
        left -= older or 0
        if self.communication_bytes is not None:
            buckets = min(self.communication_bytes, left)
            parts["communication_buffers"] = _constant(buckets, created)
            left -= buckets
        return {**parts, "kept": _constant(left, created)}

    def _older_state(self, curves: Mapping[str, Int64s], kept_bytes: int, left: int) -> int | None:
        created, gradients = (int(curves[name].max(initial=0)) for name in ("optimizer_state", "gradients"))
        if self.optimizer_bytes is not None:
            return min(max(self.optimizer_bytes - created, 0), left)
        is_whole = created > 0 and created >= _MIN_STATE * (self.weights_bytes or gradients)
        return 0 if is_whole or (self.seen_whole and not kept_bytes) else None


def why_unknown(by_category: Mapping[str, int | None] | None, *, seen_whole: bool) -> dict[str, str]:
    """Return the reason for each category that is unknown."""
    return {name: _WHY if seen_whole else _WHY_ON_HOST for name, size in (by_category or {}).items() if size is None}


def _constant(size_bytes: int | None, like: Int64s) -> Int64s | None:
    return None if size_bytes is None else np.full(len(like), size_bytes, np.int64)


# Categories of memory, by allocations and frees.
#
#     temporary         freed in the same stretch of forward, backward or optimizer that allocated it
#     activations       allocated in forward and kept beyond it: for backward, or as inputs and outputs
#     gradients         allocated in backward and kept beyond it
#     optimizer_state   allocated in the optimizer's step and kept beyond it
#     other             kept beyond the stretch between backward and optimizer that allocated it
#     kept              there before the window and never freed in it: parameters, optimizer state, buffers
#
# Blocks from before the window that are freed in it become what blocks of their size, freed in the same phase, are in
# the rest of the window; where there are none, freed in backward means activations and elsewhere gradients.

_CATEGORIES = ("temporary", "activations", "gradients", "optimizer_state", "other", "kept")
TEMPORARY, ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, OTHER = range(len(_CATEGORIES) - 1)

Categories = npt.NDArray[np.uint8]

_OF_PHASE = {
    Phase.UNKNOWN: OTHER,
    Phase.FORWARD: ACTIVATIONS,
    Phase.BACKWARD: GRADIENTS,
    Phase.AFTER_BACKWARD: OTHER,
    Phase.OPTIMIZER: OPTIMIZER_STATE,
}


@dataclass(frozen=True, eq=False, repr=False)
class CategorisedBlocks(ArrayRecord):
    """Blocks with what they were for, and how much was there all along."""

    blocks: Blocks
    category: Categories
    #: there before the window and never freed in it; None where the totals were not recorded
    kept_bytes: int | None

    def over_time(self, num_events: int) -> npt.NDArray[np.int64]:
        """Return bytes by category and event, without `kept`."""
        b = self.blocks
        return bytes_over_time(self.category, len(_CATEGORIES) - 1, b.born, b.died, b.size_bytes, num_events)


def categorised(events: MemoryEvents, blocks: Blocks, found: Passes, steps: Steps) -> CategorisedBlocks:
    """Return what each block was for."""
    phase = found.at(events.time_ns, events.thread)
    edges = (found.backward.start, found.backward.end, found.optimizer.start, found.optimizer.end, steps.start_ns)
    stretch = np.searchsorted(np.sort(np.concatenate(edges)), events.time_ns, side="right")
    category = np.full(len(blocks), OTHER, np.uint8)
    here = blocks.born != NOT_HERE
    born, died = blocks.born[here], blocks.died[here]
    of_phase = np.array([_OF_PHASE[p] for p in Phase], np.uint8)[phase[born]]
    category[here] = np.where((died != NOT_HERE) & (stretch[born] == stretch[died]), TEMPORARY, of_phase)
    older = ~here
    category[older] = _like_the_others(blocks, category, here, older, phase)
    before = events.before_bytes
    return CategorisedBlocks(blocks, category, None if before is None else before - int(blocks.size_bytes[older].sum()))


def _like_the_others(
    blocks: Blocks, category: Categories, here: npt.NDArray[np.bool_], older: npt.NDArray[np.bool_], phase: Phases
) -> Categories:
    ended = here & (blocks.died != NOT_HERE) & (category != TEMPORARY)
    ends = [phase[blocks.died[which]].astype(np.int64) for which in (ended, older)]
    known, wanted = (
        blocks.size_bytes[which] * len(Phase) + end for which, end in zip((ended, older), ends, strict=True)
    )
    keys, first = np.unique(known, return_index=True)
    fallback = np.where(ends[1] == Phase.BACKWARD, ACTIVATIONS, GRADIENTS)
    if not len(keys):
        return fallback.astype(np.uint8)
    i = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[i] == wanted, category[ended][first[i]], fallback).astype(np.uint8)


# Memory of a rank over the window, by category and phase.
#
# The curves behind the peak: what is changed in one category changes each of them, and the peak may move.

# bytes by category after each event; None where a category is unknown
Curves = Mapping[str, Int64s | None]


@dataclass(frozen=True, eq=False, repr=False)
class Moments(ArrayRecord):
    """Memory after each event on one device of one rank."""

    #: of training; None where nothing tells it
    phase: Phases | None
    #: sums to what is allocated; None where a category is unknown and part of another
    by_category: Curves
    #: False where the host's own memory was recorded
    on_device: bool
    #: False where what was there before the profiler is not in it
    is_whole: bool = True

    @property
    def allocated_bytes(self) -> Int64s:
        """Return the sum of all categories."""
        return np.sum([curve for curve in self.by_category.values() if curve is not None], axis=0, dtype=np.int64)

    def most(self, category: str) -> int | None:
        """Return the most that was held of a category, None where it is unknown."""
        curve = self.by_category.get(category)
        return None if curve is None else int(curve.max(initial=0))


def rank_moments(run: Run, rank: Rank, found: Passes) -> Moments | None:
    """Return the moments of a rank; None without memory events, or where their blocks or totals are unknown."""
    events, older = held_events(run, rank)
    blocks = blocks_of(events) if events else None
    if events is None or blocks is None or events.before_bytes is None:
        return None
    curves = category_curves(events, categorised(events, blocks, found, rank.steps), older)
    phase = found.at(events.time_ns, events.thread) if found.known else None
    return Moments(phase, curves, on_device=not events.on_host, is_whole=older.is_known)


def snapshot_moments(by_purpose: Mapping[str, tuple[int, ...] | None], phases: Sequence[str]) -> Moments | None:
    """Return the moments of a snapshot's timeline, None where it has no history."""
    if not any(by_purpose.values()):
        return None
    curves = {
        "temporary" if name == "temporaries" else name: None if curve is None else np.array(curve, np.int64)
        for name, curve in by_purpose.items()
    }
    return Moments(np.array([Phase[name.upper()] for name in phases], np.uint8), curves, on_device=True)


def category_curves(events: MemoryEvents, categories: CategorisedBlocks, older: FromBefore) -> Curves:
    """Return bytes of each category after each event; `kept` and its parts only where the totals were recorded."""
    curves = dict(zip(_CATEGORIES, categories.over_time(len(events)), strict=False))
    return {**curves} if categories.kept_bytes is None else older.split(curves, categories.kept_bytes)


def held_events(run: Run, rank: Rank) -> tuple[MemoryEvents | None, FromBefore]:
    """Return the memory events of a rank, and what is known of what was there before them.

    What the job counted on a rank without a device is older than the profiler's own totals: it is put below them.
    """
    events, older = _memory_events(rank), _from_before(run, rank.rank)
    if events is None or not events.on_host:
        return events, older
    counted = (older.weights_bytes or 0) + (older.optimizer_bytes or 0) + (older.communication_bytes or 0)
    return events.on_top_of(counted), replace(older, seen_whole=False)


def _from_before(run: Run, rank: int) -> FromBefore:
    edges = [edge.bytes_by for edge in run.beside.memory if edge.rank == rank]
    counted = {name: size for edge in edges for name, size in edge.items()}
    weights_bytes = counted.get("parameters", _parameter_bytes(run))
    return FromBefore(weights_bytes, counted.get("optimizer"), counted.get("communication"))


def _parameter_bytes(run: Run) -> int | None:
    model = run.description.get("model")
    said = [model.get(name) for name in ("bytes", "parameters", "local_parameters")] if isinstance(model, dict) else []
    numbers = [n for n in said if isinstance(n, int) and n > 0]
    return numbers[0] * numbers[2] // numbers[1] if len(numbers) == 3 else None
