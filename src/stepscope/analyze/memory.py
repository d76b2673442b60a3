"""How much memory did each rank use, when was the peak and what made it up, and does it grow?

From the profiler's memory events where they were recorded (every allocation of the window), and from the step logs
(a sample per step, over the whole job). *Cache* is memory the allocator has reserved and no tensor holds; how much
of it is fragmented is not visible in totals.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import over_ranks
from stepscope.analyze.host_time import Mask, call_stacks, host_calls
from stepscope.analyze.ownership import Ownership
from stepscope.analyze.phases import Passes, Phase, Phases
from stepscope.analyze.steadiness import SIGNIFICANT
from stepscope.contract.step_line import EVALUATE
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.device_work import Rows
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog
from stepscope.run.steps import Steps
from stepscope.stats.robust import distinct, median, trend
from stepscope.trace.table import EventKind, Int64s, of_kinds, rows_named

# Which blocks of memory were allocated and freed while the profiler watched, and what did that leave at each moment?
#
# Every event has a number of bytes, negative for a free, its address, and the allocator's totals after it. An
# allocation and the next free at its address are one block. Blocks can begin before the window and end after it.

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
    #: None where it was not recorded: then blocks are unknown
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
        """Return whether these are of the host's memory, whose totals leave out allocations before the profiler."""
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

    def alive(self, event: int) -> Mask:
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
    number = trace.arg("ev_idx").at(rows, missing=0)  # the order of events of one moment
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

_FRAME = re.compile(r"^(?P<path>[^<(][^(]*)\(\d+\): ")
_LIBRARIES = re.compile(r"(^|/)(torch|site-packages|dist-packages|lightning|accelerate|transformers|deepspeed)/")


def _operator_names(rank: Rank, thread: Int64s, moment_ns: Int64s) -> list[str | None]:
    """Return the outermost operator at each moment, without the autograd engine's prefix."""
    calls = host_calls(rank)
    at = calls.innermost_at(thread, moment_ns)
    while len(calls) and (inner := (at >= 0) & (calls.parent[at] >= 0)).any():
        at[inner] = calls.parent[at[inner]]
    names = [rank.trace.strings[calls.name[call]] if call >= 0 else None for call in at.tolist()]
    return [name and name.removeprefix(f"{EVALUATE}: ") for name in names]


def _is_users(frame: str) -> bool:
    found = _FRAME.match(frame)
    if not found or _LIBRARIES.search(found["path"]) or not found["path"].endswith(".py"):
        return False
    return found["path"].split("/")[0].removesuffix(".py") not in sys.stdlib_module_names


# Memory from before the window: weights, optimizer state, DDP buckets.
#
# Not in the trace; taken from the job's own account of its model and optimizer (`run.json`, `rank00000.memory.jsonl`).
# Where neither was recorded both are unknown, and all of it is `kept`. State that the optimizer creates within the
# window is known from the trace; a few bytes created there while the state is older are not state, and never a state
# of 0.

# of the weights (of the gradients where those are unknown), below which what was created is not all of the state
_MIN_STATE = 0.1
_WHY = "created before the window and counted in `kept`; record with --memory to separate it"
_WHY_ON_HOST = "there before the profiler, which counts the host's memory from its own start; record with --memory"


@dataclass(frozen=True)
class FromBefore:
    """What is known of the memory from before the window; None is unknown."""

    weights_bytes: int | None = None
    optimizer_bytes: int | None = None
    #: DDP's buckets; part of `kept` where they were not counted
    communication_bytes: int | None = None
    #: whether `kept` covers all memory; the host's totals leave out what is older than the profiler
    seen_whole: bool = True

    @property
    def is_known(self) -> bool:
        """Return whether the totals together with what was counted hold all of weights and state."""
        return self.seen_whole or (self.weights_bytes is not None and self.optimizer_bytes is not None)

    def split(self, curves: Mapping[str, Int64s], kept_bytes: int) -> dict[str, Int64s | None]:
        """Return curves by category with `kept` split up; those that are not None have the same sum."""
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
#     activations       allocated in forward and alive beyond it: for backward, or as inputs and outputs
#     gradients         allocated in backward and alive beyond it
#     optimizer_state   allocated in the optimizer's step and alive beyond it
#     other             alive beyond the stretch between backward and optimizer that allocated it
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


def _like_the_others(blocks: Blocks, category: Categories, here: Mask, older: Mask, phase: Phases) -> Categories:
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

    #: of training; None where unknown
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


# Growth from step to step: a leak is a significant slope.


def growth(steps: npt.ArrayLike, amounts: npt.ArrayLike) -> Row | None:
    """Return the growth of an amount sampled at the ends of steps; NaN where a step has no sample. None below eight."""
    x, y = np.asarray(steps, float), np.asarray(amounts, float)
    known = np.isfinite(y)
    x, y = x[known], y[known]
    # the first steps create optimizer state and warm the cache; on long runs a tenth of them is left out
    settled = min(max(3, int(0.1 * len(x))), len(x) // 3)
    x, y = x[settled:], y[settled:]
    found = trend(x, y)
    if found is None:
        return None
    total = found.slope * float(x[-1] - x[0])
    significant = found.p_value < SIGNIFICANT and found.low > 0
    return Row(
        bytes_per_step=found.slope,
        low_bytes_per_step=found.low,  # 95 % interval
        high_bytes_per_step=found.high,
        p_value=found.p_value,
        total_bytes=total,  # over the analysed steps, by the slope
        num_steps=len(x),
        leaks=significant and total >= 0.005 * median(y),  # of the level
    )


# Leak suspects: lines whose allocations of every step stay alive.


def leaks(
    column: str, names: Sequence[str | None], step: npt.NDArray[np.integer], size_bytes: Int64s, stays: Mask
) -> list[Row]:
    """Return the names, in this column, that keep something of each of several steps of theirs, the most first.

    Of each block: who allocated it in which step, and whether it `stays`.
    """
    steps: dict[str, set[int]] = defaultdict(set)
    kept: dict[str, Counter[int]] = defaultdict(Counter)
    for name, of_step, size, here in zip(names, step.tolist(), size_bytes.tolist(), stays.tolist(), strict=True):
        if name:
            steps[name].add(of_step)
            if here:
                kept[name][of_step] += size
    found = [
        Row({column: name, "steps": len(by), "size_bytes": by.total(), "bytes_per_step": by.total() / len(by)})
        for name, by in kept.items()
        if 2 <= len(by) == len(steps[name])
    ]
    return sorted(found, key=lambda leak: -leak.size_bytes)


def _kept_over_steps(categories: CategorisedBlocks, step: npt.NDArray[np.integer], *, last_step: int) -> Int64s:
    """Return the blocks allocated in a step before the last one and still alive when the window ends.

    `step` is that of each event. Gradients and optimizer state are left out: they persist on purpose.
    """
    blocks = categories.blocks
    kept = (blocks.born != NOT_HERE) & (blocks.died == NOT_HERE)
    kept &= np.isin(categories.category, (ACTIVATIONS, OTHER))
    rows = np.flatnonzero(kept)
    born_in = step[blocks.born[rows]]
    return rows[(born_in >= 0) & (born_in < last_step)]


# Lines and modules that allocated blocks.
#
# By the owners that the job recorded (or the frames in its trace); without those, by the Python frame around.

# of one rank; computed only where there is memory to own
OwnersOf = Callable[[], Ownership | None]


def _line_names(rank: Rank, owned: Ownership | None, rows: Rows) -> list[str | None]:
    if not len(rows):
        return []
    if owned is None:
        trace = rank.trace
        python = rows_named(trace, np.flatnonzero(rank.kinds == EventKind.PYTHON), _is_users)
        frames = call_stacks(trace, python)
        at = frames.innermost_at(trace["tid"][rows], trace["ts_ns"][rows]).tolist()
        return [trace.strings[frames.name[frame]] if frame >= 0 else None for frame in at]
    names = [f"{f.file}:{f.line} ({f.function})" for f in owned.frames]
    found = owned.stacks.innermost_user[owned.of_rows(rows).stack].tolist()
    return [names[frame] if frame >= 0 else None for frame in found]


def _module_names(owned: Ownership | None, rows: Rows) -> list[str | None]:
    if owned is None:
        return [None] * len(rows)
    return [owned.modules[module] if module >= 0 else None for module in owned.of_rows(rows).module.tolist()]


def held_by(column: str, names: Sequence[str | None], size_bytes: Int64s, *, most: int) -> list[Row]:
    """Return what each name, in this column, holds: the most first; blocks without one are left out."""
    known = [(name, size) for name, size in zip(names, size_bytes.tolist(), strict=True) if name]
    blocks, held = Counter(name for name, _ in known), Counter[str]()
    for name, size in known:
        held[name] += size
    return [Row({column: name, "size_bytes": size, "blocks": blocks[name]}) for name, size in held.most_common(most)]


_MAX_HOLDERS = 12
_SINCE_START = (
    "on the host the profiler counts from its own start: `peak` leaves out weights, optimizer state and whatever else "
    "was there before; record with --memory to have them counted"
)
_RELATIVE = "the events carry no totals: `peak` counts only what the window allocated"
_ALLOCATOR_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cuMemCreate", "cuMemRelease")


def memory_view(
    run: Run, *, passes: Sequence[Passes], logs: Sequence[StepLog] = (), owners: Sequence[OwnersOf] = ()
) -> Row | None:
    """Return the memory of a run, None where neither memory events nor samples were recorded.

    `passes` are those of each rank (`Strategy.passes`), `owners` gives those who own what it did.
    """
    by_rank = {log.rank: log for log in logs}
    each = zip(run.ranks, passes, owners or [lambda: None] * len(run.ranks), strict=True)
    ranks = [
        _rank_memory(rank, found, by_rank.get(rank.rank), held_events(run, rank), owned) for rank, found, owned in each
    ]
    known = [r for r in ranks if r.peak_allocated_bytes is not None or r.host_peak_bytes is not None or r.peak]

    def fullness(one: Row) -> int:
        return int(one.peak_reserved_bytes or one.peak_allocated_bytes or (one.peak.allocated_bytes if one.peak else 0))

    if not known:
        return None
    return Row(ranks=known, fullest_rank=max(known, key=fullness).rank, over_ranks=over_ranks(known))


def _rank_memory(
    rank: Rank, found: Passes, log: StepLog | None, held: tuple[MemoryEvents | None, FromBefore], owners: OwnersOf
) -> Row:
    """Return the memory of one rank. None is unknown; `reasons` has the reason."""
    events, older = held
    blocks = blocks_of(events) if events else None
    categories = categorised(events, blocks, found, rank.steps) if events and blocks is not None else None
    curves = category_curves(events, categories, older) if events and categories else None
    owned = owners() if categories else None
    peak = _peak(rank, events, categories, found, curves, owned) if events else None
    whole = peak if events is not None and events.before_bytes is not None and older.is_known else None
    allocated = _larger(whole.allocated_bytes if whole else None, _most(log, "peak_allocated_bytes"))
    in_trace = int(events.reserved_bytes.max()) if events and events.reserved_bytes is not None else None
    reserved = _larger(in_trace, _most(log, "peak_reserved_bytes"))
    total = _device_total(rank, events.device if events else None)
    filled = reserved if reserved is not None else allocated
    steps = _steps(rank, events) if events else []
    retries = _logged(log, "allocator_retries")
    grown = _grown(log, "allocated_bytes") or growth([s.step for s in steps], [s.end_bytes for s in steps])
    return Row(
        rank=rank.rank,
        device=events.device if events else None,  # -1 where only the host's memory was recorded
        device_total_bytes=total,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        # most reserved (allocated where that is unknown) against the device's memory
        peak_pct_of_total=100 * filled / total if total and filled else None,
        parameter_bytes=older.weights_bytes,  # this rank's share, as counted by the job itself; part of `kept`
        # reserved and held by no tensor, at the peak
        cache_bytes=peak.reserved_bytes - peak.allocated_bytes if peak and peak.reserved_bytes is not None else None,
        allocator_calls=_allocator_calls(rank),
        # how often the cache had to be emptied, over the logged steps
        allocator_retries=int(retries[-1] - retries[0]) if len(retries) else None,
        host_peak_bytes=_most(log, "host_peak_bytes"),
        peak=peak,
        steps=steps,
        timeline=_timeline(rank, events, curves) if events else None,
        growth=grown,  # of allocated memory at the ends of steps
        host_growth=_grown(log, "host_bytes"),
        leaks=_leaks(rank, events, categories, owned) if events and categories else [],
        reasons={
            **_reasons(events, log, older, grown),
            **why_unknown(peak.by_category if peak else None, seen_whole=older.seen_whole),
        },
    )


def _peak(
    rank: Rank,
    events: MemoryEvents,
    categories: CategorisedBlocks | None,
    found: Passes,
    curves: Curves | None,
    owned: Ownership | None,
) -> Row:
    """Return the moment at which most was allocated."""
    at = int(events.allocated_bytes.argmax())
    moment, thread = events.time_ns[at : at + 1], events.thread[at : at + 1]
    step = int(rank.steps.of(moment)[0])
    born = size = events.row[:0]
    if categories is not None:
        blocks = categories.blocks
        alive = blocks.alive(at) & (blocks.born != NOT_HERE)
        born, size = blocks.born[alive], blocks.size_bytes[alive]
    by_category = None
    if curves and categories and categories.kept_bytes is not None:
        by_category = {name: None if curve is None else int(curve[at]) for name, curve in curves.items()}
    by = {
        "by_operator": _operator_names(rank, events.thread[born], events.time_ns[born]),
        "by_source_line": _line_names(rank, owned, events.row[born]),
        "by_module": _module_names(owned, events.row[born]),
    }
    return Row(
        allocated_bytes=int(events.allocated_bytes[at]),
        reserved_bytes=int(events.reserved_bytes[at]) if events.reserved_bytes is not None else None,
        time_ns=int(moment[0]) - _begin(rank, events),
        step=int(rank.steps.number[step]) if step >= 0 else None,
        phase=Phase(int(found.at(moment, thread)[0])).name.lower(),
        operator=_operator_names(rank, thread, moment)[0],  # the outermost one that was allocating
        by_category=by_category,  # what is known sums to `allocated_bytes`; None where blocks are unknown
        # whose blocks are alive
        **{name: held_by("name", names, size, most=_MAX_HOLDERS) for name, names in by.items()},
    )


def _leaks(rank: Rank, events: MemoryEvents, categories: CategorisedBlocks, owned: Ownership | None) -> list[Row]:
    """Return the lines (operators where those are unknown) that keep what they allocate in the steps of the window."""
    step = rank.steps.of(events.time_ns)
    kept = _kept_over_steps(categories, step, last_step=len(rank.steps) - 1)
    born = categories.blocks.born[kept]
    names = _line_names(rank, owned, events.row[born])
    if not any(names):
        names = _operator_names(rank, events.thread[born], events.time_ns[born])
    return leaks("name", names, step[born], categories.blocks.size_bytes[kept], born >= 0)[:_MAX_HOLDERS]


def _begin(rank: Rank, events: MemoryEvents) -> int:
    return int(rank.steps.start_ns[0]) if len(rank.steps) else int(events.time_ns[0])


def _steps(rank: Rank, events: MemoryEvents) -> list[Row]:
    before = np.concatenate(([int(events.allocated_bytes[0] - events.change_bytes[0])], events.allocated_bytes))
    first = np.searchsorted(events.time_ns, rank.steps.start_ns)
    last = np.searchsorted(events.time_ns, rank.steps.end_ns)
    return [
        Row(step=step, start_bytes=int(before[a]), peak_bytes=int(before[a : b + 1].max()), end_bytes=int(before[b]))
        for step, a, b in zip(rank.steps.number.tolist(), first, last, strict=True)
    ]


def _timeline(rank: Rank, events: MemoryEvents, curves: Curves | None) -> Row:
    """Return memory over the window, thinned to the largest moments of equal slices of events."""
    at = largest_moments(events.allocated_bytes)
    by_category = {name: curve[at].tolist() for name, curve in (curves or {}).items() if curve is not None}
    return Row(
        time_ns=tuple((events.time_ns[at] - _begin(rank, events)).tolist()),
        allocated_bytes=events.allocated_bytes[at].tolist(),
        reserved_bytes=None if events.reserved_bytes is None else events.reserved_bytes[at].tolist(),
        by_category=None if curves is None else by_category,
    )


def _larger(a: int | None, b: int | None) -> int | None:
    known = [x for x in (a, b) if x is not None]
    return max(known) if known else None


def _device_total(rank: Rank, device: int | None) -> int | None:
    listed = rank.trace.header.get("deviceProperties")
    wanted = device if device is not None and device >= 0 else int(rank.work.device[0]) if rank.has_device else None
    for entry in listed if isinstance(listed, list) else []:
        total = entry.get("totalGlobalMem") if isinstance(entry, dict) and entry.get("id") == wanted else None
        if isinstance(total, int) and total > 0:
            return total
    return None


def _allocator_calls(rank: Rank) -> float | None:
    if not rank.has_device or not len(rank.steps):
        return None
    rows = rank.rows_named(lambda s: s.startswith(_ALLOCATOR_CALLS), EventKind.RUNTIME)
    return int((rank.steps.of(rank.trace["ts_ns"][rows]) >= 0).sum()) / len(rank.steps)


def _logged(log: StepLog | None, name: str) -> npt.NDArray[np.float64]:
    values = log.column(f"memory.{name}") if log is not None else np.empty(0)
    return values[np.isfinite(values)]


def _most(log: StepLog | None, name: str) -> int | None:
    values = _logged(log, name)
    return int(values.max()) if len(values) else None


def _grown(log: StepLog | None, name: str) -> Row | None:
    return growth(log.step, log.column(f"memory.{name}")) if log is not None else None


def _reasons(events: MemoryEvents | None, log: StepLog | None, older: FromBefore, grown: Row | None) -> dict[str, str]:
    no_totals = events is not None and events.before_bytes is None
    since_start = events is not None and not no_totals and not older.is_known
    return {
        name: why
        for applies, name, why in (
            (True, "fragmentation", "totals do not show fragmentation; a memory snapshot does"),
            (events is None, "peak", "the trace holds no memory events: record with memory profiling on"),
            (no_totals, "by_category", "the memory events carry no totals, so what was there before them is unknown"),
            (no_totals, "peak_allocated_bytes", _RELATIVE),
            (since_start, "peak_allocated_bytes", _SINCE_START),
            (
                events is not None and events.address is None,
                "by_category",
                "the memory events carry no addresses to identify blocks",
            ),
            (grown is None, "growth", "it takes eight steps with samples, after the first ones, to tell a slope"),
            (log is None, "allocator_retries", "no step log: retries are counted there"),
            (
                older.weights_bytes is None,
                "parameter_bytes",
                "the run's description does not give the model's parameters",
            ),
        )
        if applies
    }


# What do weights, gradients and optimizer state take by the formulas, for the model that the job described?
#
#     weights            parameters of this rank x bytes of each
#     gradients          as the weights that are trained
#     optimizer state    Adam and AdamW two values per trained weight, in the weight's type
#
# The model's shape is not recorded, so activations are not among them: `stepscope predict memory` takes it.

# values per weight by the class of the optimizer; others may keep anything (SGD a momentum or nothing)
_MOMENTS = {"Adam": 2, "AdamW": 2}
_NO_MODEL = "the run's description does not give the model's parameters"
_NO_SHAPE = "it takes the model's shape, which is not recorded: stepscope predict memory"


def predicted_states(description: Mapping[str, Any], moments: Moments | None) -> tuple[Row, ...]:
    """Return predicted next to measured memory; empty if neither is known."""
    weights = _share_of_weights(description, "local_parameters")
    trained = _share_of_weights(description, "trainable_parameters")
    whole = _share_of_weights(description, "parameters")
    gradients = weights * trained // whole if weights and trained is not None and whole else None
    name = description.get("optimizer")
    kept = _MOMENTS.get(name) if isinstance(name, str) else None
    state = gradients * kept if gradients is not None and kept else None
    why_state = _NO_MODEL if gradients is None else "what its optimizer keeps per weight is not known"
    rows = (
        ("weights", weights, _NO_MODEL),
        ("gradients", gradients, _NO_MODEL),
        ("optimizer_state", state, why_state),
        ("activations", None, _NO_SHAPE),
        ("temporary", None, _NO_SHAPE),
    )
    found = tuple(
        Row(
            category=category,
            predicted_bytes=size,
            measured_bytes=moments.most(category) if moments else None,
            reason=None if size is not None else why,
        )
        for category, size, why in rows
    )
    return found if any(row.predicted_bytes is not None or row.measured_bytes for row in found) else ()


def _share_of_weights(description: Mapping[str, Any], of: str) -> int | None:
    model = description.get("model")
    said = [model.get(name) for name in ("bytes", of, "parameters")] if isinstance(model, dict) else []
    numbers = [n for n in said if type(n) is int and n >= 0]
    return numbers[0] * numbers[1] // numbers[2] if len(numbers) == 3 and numbers[2] else None
