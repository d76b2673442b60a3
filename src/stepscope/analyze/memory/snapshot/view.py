"""What does a memory snapshot say: the peak and what is alive at it, by purpose and line, gaps, and what grows?"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from stepscope.analyze.hang.groups import user_frame
from stepscope.analyze.memory.snapshot.purposes import OTHER, PURPOSES, Part, Purposes, purposes_of
from stepscope.analyze.memory.snapshot.replay import NOT_HERE, History, history_of
from stepscope.dataclass import dataclass
from stepscope.stats.distinct import distinct
from stepscope.trace.pickles.memory_snapshot import MemorySnapshot

MAX_HOLDERS = 15
MAX_GAPS = 8
MAX_POINTS = 400
_MIN_LEAK_STEPS = 2
_NODE = re.compile(r"(\w{1,100}Backward\d{0,3}|AccumulateGrad)::(?:apply|release_variables)")
BEFORE = "(before the history)"
NO_FRAMES = "(no stack recorded)"


@dataclass(frozen=True)
class LineBytes:
    """What one line of the user's code holds."""

    place: str
    """`train.py:42 (forward)`"""
    purpose: str
    """what most of it is for"""
    size_bytes: int
    blocks: int


@dataclass(frozen=True)
class Moment:
    """Memory at one moment of the history."""

    event: int
    time_us: int | None
    allocated_bytes: int
    reserved_bytes: int | None
    by_purpose: dict[str, int | None]
    """None is unknown, and then part of `unknown`; all but `reserved_unused` sum to what is allocated"""
    by_line: tuple[LineBytes, ...]


@dataclass(frozen=True)
class Gap:
    """Free memory between blocks, which only a smaller request can use."""

    size_bytes: int
    segment_bytes: int
    address: int


@dataclass(frozen=True)
class Leak:
    """A line whose allocations of several steps are all still there."""

    place: str
    steps: int
    size_bytes: int
    bytes_per_step: float


@dataclass(frozen=True)
class SnapshotView:
    """One snapshot in one answer."""

    path: str
    device: int
    num_events: int
    num_segments: int
    peak: Moment
    """within the history; the process may have had more before it"""
    end: Moment
    free_bytes: int
    """reserved, held by no tensor"""
    largest_free_bytes: int
    fragmentation: float | None
    """share of the free memory that no single request could use; None where nothing is free"""
    unused_segment_bytes: int
    """of segments without any tensor: emptying the cache gives them back"""
    gaps: tuple[Gap, ...]
    step_end_bytes: tuple[int, ...]
    """allocated when each optimizer step of the history was over"""
    step_peak_bytes: tuple[int, ...]
    leaks: tuple[Leak, ...]
    timeline: dict[str, tuple[int, ...]]
    by_purpose: dict[str, tuple[int, ...] | None]
    """at the moments of `timeline`; None is unknown, and then part of `unknown`"""
    phases: tuple[str, ...]
    """forward, backward or optimizer, at the moments of `timeline`"""
    reasons: dict[str, str]


def snapshot_view(
    snapshot: MemorySnapshot, *, storages: Mapping[int, str] | None = None, bucket_bytes: Sequence[int] = ()
) -> SnapshotView:
    """Return what a snapshot says.

    `storages` has what the job said of the memory at an address, `bucket_bytes` the sizes of DDP's buckets.
    """
    history = history_of(snapshot)
    purposes = purposes_of(snapshot, history, storages=storages, bucket_bytes=bucket_bytes)
    last = len(snapshot.action) - 1
    peak = int(history.allocated_bytes.argmax()) if last >= 0 else NOT_HERE
    free = [b.size_bytes for s in snapshot.segments for b in s.blocks if not b.allocated]
    reasons = _reasons(snapshot, history, purposes, storages)
    return SnapshotView(
        path=snapshot.path,
        device=snapshot.device,
        num_events=len(snapshot.action),
        num_segments=len(snapshot.segments),
        peak=_moment(snapshot, history, purposes, peak, reasons),
        end=_moment(snapshot, history, purposes, last, reasons),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        fragmentation=1 - max(free) / sum(free) if sum(free) else None,
        unused_segment_bytes=sum(s.size_bytes for s in snapshot.segments if not any(b.allocated for b in s.blocks)),
        gaps=_gaps(snapshot),
        step_end_bytes=tuple(int(history.allocated_bytes[e]) for e in purposes.step_ends),
        step_peak_bytes=_step_peaks(history, purposes),
        leaks=_leaks(snapshot, history, purposes),
        timeline=_timeline(snapshot, history),
        by_purpose=_curves(history, purposes, reasons),
        phases=tuple(Part(int(purposes.part[i])).name.lower() for i in _largest_moments(history)),
        reasons=reasons,
    )


def _moment(
    snapshot: MemorySnapshot, history: History, purposes: Purposes, event: int, reasons: Mapping[str, str]
) -> Moment:
    known = event >= 0
    allocated = int(history.allocated_bytes[event]) if known else snapshot.allocated_bytes
    reserved: int | None = snapshot.reserved_bytes
    if known and event < len(snapshot.action) - 1:
        reserved = None if history.reserved_bytes is None else int(history.reserved_bytes[event])
    sums: dict[str, int | None] = dict(purposes.at(history, event))
    for name in PURPOSES:
        if name in reasons and not sums[name]:
            sums[name] = None
    return Moment(
        event=event,
        time_us=snapshot.time_us[event] if known else None,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        by_purpose={**sums, "reserved_unused": None if reserved is None else reserved - allocated},
        by_line=_by_line(snapshot, history, purposes, event),
    )


def _by_line(snapshot: MemorySnapshot, history: History, purposes: Purposes, event: int) -> tuple[LineBytes, ...]:
    places = _places(snapshot)
    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    of: dict[str, Counter[int]] = {}
    for i in np.flatnonzero(history.alive(event)):
        stack = int(history.stack[i])
        place = places[stack] if stack >= 0 else BEFORE if history.born[i] == NOT_HERE else NO_FRAMES
        held[place] += int(history.size_bytes[i])
        blocks[place] += 1
        of.setdefault(place, Counter())[int(purposes.of_block[i])] += int(history.size_bytes[i])
    return tuple(
        LineBytes(place, PURPOSES[of[place].most_common(1)[0][0]], size, blocks[place])
        for place, size in held.most_common(MAX_HOLDERS)
    )


def _places(snapshot: MemorySnapshot) -> list[str]:
    """Return the user's line of every stack; backward has none, so its operator is named."""
    out = []
    for stack in snapshot.stacks:
        frames = [snapshot.frames[f] for f in stack]
        own = user_frame([f for f in frames if f.file.endswith(".py")])
        if own is not None:
            out.append(f"{own.file}:{own.line} ({own.function})")
        else:
            node = next((found for f in frames if (found := _NODE.search(f.function))), None)
            out.append(f"backward: {node[1]}" if node else NO_FRAMES)
    return out


def _gaps(snapshot: MemorySnapshot) -> tuple[Gap, ...]:
    found = [
        Gap(b.size_bytes, s.size_bytes, b.address)
        for s in snapshot.segments
        if any(b.allocated for b in s.blocks)
        for b in s.blocks
        if not b.allocated
    ]
    return tuple(sorted(found, key=lambda g: -g.size_bytes)[:MAX_GAPS])


def _step_peaks(history: History, purposes: Purposes) -> tuple[int, ...]:
    first, out = 0, []
    for end in purposes.step_ends.tolist():
        out.append(int(history.allocated_bytes[first : end + 1].max()))
        first = end
    return tuple(out)


def _leaks(snapshot: MemorySnapshot, history: History, purposes: Purposes) -> tuple[Leak, ...]:
    """Return lines that allocated in several steps what is all still there, the most first."""
    places = _places(snapshot)
    step = np.searchsorted(purposes.step_ends, history.born)
    born_at: dict[str, Counter[int]] = {}
    kept: dict[str, Counter[int]] = {}
    for i in range(len(history.size_bytes)):
        stack = int(history.stack[i])
        if (
            history.born[i] == NOT_HERE
            or stack < 0
            or purposes.of_block[i] != OTHER
            or step[i] >= len(purposes.step_ends)
        ):
            continue
        place, size = places[stack], int(history.size_bytes[i])
        born_at.setdefault(place, Counter())[int(step[i])] += size
        if history.died[i] == NOT_HERE:
            kept.setdefault(place, Counter())[int(step[i])] += size
    found = [
        Leak(place, len(steps), sum(steps.values()), sum(steps.values()) / len(steps))
        for place, steps in kept.items()
        if len(steps) >= _MIN_LEAK_STEPS and len(steps) == len(born_at[place])
    ]
    return tuple(sorted(found, key=lambda leak: -leak.size_bytes))


def _timeline(snapshot: MemorySnapshot, history: History) -> dict[str, tuple[int, ...]]:
    """Return the largest moment of each of equally many events."""
    at = _largest_moments(history)
    begin = snapshot.time_us[0] if at else 0
    return {
        "time_us": tuple(snapshot.time_us[i] - begin for i in at),
        "allocated_bytes": tuple(int(history.allocated_bytes[i]) for i in at),
        **({} if history.reserved_bytes is None else {"reserved_bytes": tuple(history.reserved_bytes[at].tolist())}),
    }


def _curves(history: History, purposes: Purposes, reasons: Mapping[str, str]) -> dict[str, tuple[int, ...] | None]:
    """Return bytes by purpose at the moments of the timeline."""
    curves = purposes.over_time(history)[:, _largest_moments(history)]
    return {
        name: None if name in reasons and not curve.any() else tuple(curve.tolist())
        for name, curve in zip(PURPOSES, curves, strict=True)
    }


def _largest_moments(history: History) -> list[int]:
    total = len(history.allocated_bytes)
    cuts = distinct(np.linspace(0, total, min(MAX_POINTS, total) + 1).astype(int))
    return [a + int(history.allocated_bytes[a:b].argmax()) for a, b in pairwise(cuts)]


def _reasons(
    snapshot: MemorySnapshot, history: History, purposes: Purposes, storages: Mapping[int, str] | None
) -> dict[str, str]:
    """Return why something is unknown."""
    if not len(snapshot.action):
        why = "the snapshot has no history: record with torch.cuda.memory._record_memory_history()"
        return {name: why for name in PURPOSES if name != "unknown"}
    reasons = {}
    if history.before_bytes and not storages:
        for name in ("weights", "optimizer_state"):
            if not (purposes.of_block == PURPOSES.index(name)).any():
                reasons[name] = (
                    "it was there before the history began, as part of `unknown`; "
                    "stepscope record --memory notes whose it is"
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
