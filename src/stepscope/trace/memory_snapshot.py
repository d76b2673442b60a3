"""CUDA memory snapshots: segments and blocks at the end, and the allocator's history before it.

`torch.cuda.memory._dump_snapshot` writes it, and `stepscope record --memory` as `rank00000.memory.pickle`. Stacks are
interned: an allocation has the number of its stack, a stack the numbers of its frames.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from stepscope.errors import InputError
from stepscope.records import Row, dataclass
from stepscope.trace.flight_recorder import Frame, int64_or_none, text_of
from stepscope.trace.pickles import read_pickled

_WHAT = "CUDA memory snapshot"
_ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
)
ALLOC, FREE, FREED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = range(len(_ACTIONS))
_MAX_EVENTS = 5_000_000


@dataclass(frozen=True)
class SnapshotBlock:
    """One block of a segment at the moment of the snapshot."""

    address: int
    size_bytes: int
    #: held by a tensor; else free, or waiting for a stream
    allocated: bool
    stack: int


@dataclass(frozen=True)
class Segment:
    """Memory that the allocator got from the device at once."""

    address: int
    size_bytes: int
    allocated_bytes: int
    stream: int
    small: bool
    #: belongs to a private pool, such as a CUDA graph's
    private: bool
    blocks: tuple[SnapshotBlock, ...]


@dataclass(frozen=True)
class Annotation:
    """The begin or end of a part of the step, as torch notes it: `Optimizer.step#AdamW.step`."""

    name: str
    begins: bool
    time_us: int


@dataclass(frozen=True)
class MemorySnapshot:
    """One device of a snapshot."""

    path: str
    device: int
    segments: tuple[Segment, ...]
    action: tuple[int, ...]
    address: tuple[int, ...]
    #: as requested; blocks are larger
    size_bytes: tuple[int, ...]
    time_us: tuple[int, ...]
    stack: tuple[int, ...]
    #: innermost frame first
    stacks: tuple[tuple[int, ...], ...]
    frames: tuple[Frame, ...]
    annotations: tuple[Annotation, ...]
    expandable: bool
    #: that could not be read
    lost_events: int
    out_of_memory: Row | None = None
    #: the job's own labels of its memory by address, and the sizes of DDP's buckets, where the recorder added them
    storages: Mapping[int, str] = field(default_factory=dict)
    bucket_bytes: tuple[int, ...] = ()

    @property
    def allocated_bytes(self) -> int:
        return sum(b.size_bytes for s in self.segments for b in s.blocks if b.allocated)

    @property
    def reserved_bytes(self) -> int:
        return sum(s.size_bytes for s in self.segments)


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """Return the device of a snapshot that has most events; an `InputError` where the file holds none."""
    found = read_pickled(path, _snapshot_columns, what=_WHAT)
    if found is None:
        raise InputError(f"{path} is no {_WHAT}: it has no segments; give what torch.cuda.memory._dump_snapshot wrote")
    return MemorySnapshot(
        path=str(path),
        device=found["device"],
        segments=tuple(
            Segment(address, size, used, stream, small, private, tuple(SnapshotBlock(*block) for block in blocks))
            for address, size, used, stream, small, private, blocks in found["segments"]
        ),
        **dict(zip(("action", "address", "size_bytes", "time_us", "stack"), map(tuple, found["events"]), strict=True)),
        stacks=tuple(map(tuple, found["stacks"])),
        frames=tuple(Frame(*frame) for frame in found["frames"]),
        annotations=tuple(Annotation(*a) for a in found["annotations"]),
        expandable=found["expandable"],
        lost_events=found["lost_events"],
        out_of_memory=found["out_of_memory"] and Row(found["out_of_memory"]),
        storages=dict(found["storages"]),
        bucket_bytes=tuple(found["bucket_bytes"]),
    )


def _snapshot_columns(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        return None
    traces = found.get("device_traces")
    traces = [t for t in traces if isinstance(t, list)] if isinstance(traces, list) else []
    lengths = [len(t) for t in traces]
    listed = [s for s in found["segments"] if isinstance(s, dict)]
    devices = sorted({int64_or_none(s.get("device")) or 0 for s in listed})
    noted = found.get("out_of_memory")
    noted = noted if isinstance(noted, dict) else {}
    device = lengths.index(max(lengths)) if any(lengths) else (devices[0] if devices else 0)
    device = device if (failed := int64_or_none(noted.get("device"))) is None else failed
    interned = _InternedFrames()
    events, lost, error = _events(traces[device] if 0 <= device < len(traces) else [], interned)
    storages, buckets = noted.get("storages"), noted.get("bucket_bytes")
    segments = [_segment(s, interned) for s in listed if (int64_or_none(s.get("device")) or 0) == device]
    settings = found.get("allocator_settings")
    return {
        "device": device,
        "segments": [s for s in segments if s is not None],
        "events": events,
        "stacks": interned.stacks,
        "frames": interned.frames,
        "annotations": _annotations(found.get("external_annotations"), device),
        "expandable": isinstance(settings, dict) and settings.get("expandable_segments") is True,
        "lost_events": lost,
        "out_of_memory": _out_of_memory(noted, error, len(events[0]), interned),
        "storages": [
            [address, text_of(category)]
            for address, category in (storages.items() if isinstance(storages, dict) else ())
            if int64_or_none(address) is not None
        ],
        "bucket_bytes": [
            size for size in (buckets if isinstance(buckets, list) else []) if 0 < (int64_or_none(size) or 0) < 1 << 48
        ],
    }


def _out_of_memory(
    noted: dict[Any, Any], error: list[int | None] | None, num_events: int, interned: "_InternedFrames"
) -> dict[str, Any] | None:
    """Return the last request that the allocator could not satisfy; None in it is unknown."""
    requested, free, limit = (int64_or_none(noted.get(f"{k}_bytes")) for k in ("requested", "free", "limit"))
    if error is not None:  # the allocator's own entry has the size before it is rounded up to a segment
        event, size, left, stack = error
        requested, free = size if size is not None else requested, free if free is not None else left
    else:
        event, stack = num_events, -1
    if requested is None or requested <= 0:
        return None
    own = interned.stack(noted.get("frames"))
    module = noted.get("module")
    return {
        # number of events before it
        "event": event,
        "requested_bytes": requested,
        "free_bytes": free,
        # of the device, or what the process may have of it
        "limit_bytes": limit,
        "stack": stack if own < 0 else own,
        "module": text_of(module)[:200] if module else None,
    }


class _InternedFrames:
    def __init__(self) -> None:
        self.frames: list[list[Any]] = []
        self.stacks: list[list[int]] = []
        self._frame: dict[tuple[str, int, str], int] = {}
        self._stack: dict[tuple[int, ...], int] = {}
        self._seen: dict[int, int] = {}

    def stack(self, frames: Any) -> int:
        if not isinstance(frames, list) or not frames:
            return -1
        known = self._seen.get(id(frames))
        if known is None:
            key = tuple(self._frame_number(f) for f in frames[:128] if isinstance(f, dict))
            known = self._stack.setdefault(key, len(self.stacks))
            if known == len(self.stacks):
                self.stacks.append(list(key))
            self._seen[id(frames)] = known
        return known

    def _frame_number(self, frame: dict[Any, Any]) -> int:
        key = (text_of(frame.get("filename")), int64_or_none(frame.get("line")) or 0, text_of(frame.get("name")))
        number = self._frame.setdefault(key, len(self.frames))
        if number == len(self.frames):
            self.frames.append(list(key))
        return number


def _events(trace: list[Any], interned: _InternedFrames) -> tuple[list[list[int]], int, list[int | None] | None]:
    codes = {name: code for code, name in enumerate(_ACTIONS)}
    columns: list[list[int]] = [[], [], [], [], []]
    lost, error = max(0, len(trace) - _MAX_EVENTS), None
    for event in trace[:_MAX_EVENTS]:
        action = event.get("action") if isinstance(event, dict) else None
        code = codes.get(action) if isinstance(action, str) else None
        if action == "oom":
            size, free = (int64_or_none(event.get(name)) for name in ("size", "device_free"))
            error = [len(columns[0]), size, free, interned.stack(event.get("frames"))]
        if code is None:
            continue  # snapshots and the user's own marks change nothing, as a request that failed
        address, size, time_us = (int64_or_none(event.get(name)) for name in ("addr", "size", "time_us"))
        if address is None or size is None or size < 0:
            lost += 1
            continue
        row = (code, address, size, time_us or 0, interned.stack(event.get("frames")))
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return columns, lost, error


def _segment(raw: dict[str, Any], interned: _InternedFrames) -> list[Any] | None:
    address, size = int64_or_none(raw.get("address")), int64_or_none(raw.get("total_size"))
    if address is None or size is None or size < 0:
        return None
    pool = raw.get("segment_pool_id")
    at, blocks = address, []
    for block in raw.get("blocks") if isinstance(raw.get("blocks"), list) else []:  # type: ignore[union-attr]
        length = int64_or_none(block.get("size")) if isinstance(block, dict) else None
        if length is None or length < 0:
            return None
        given = int64_or_none(block.get("address"))
        at = at if given is None else given
        blocks.append([at, length, block.get("state") == "active_allocated", interned.stack(block.get("frames"))])
        at += length
    private = isinstance(pool, list | tuple) and any(pool)
    used = int64_or_none(raw.get("allocated_size")) or 0
    return [
        address,
        size,
        used,
        int64_or_none(raw.get("stream")) or 0,
        raw.get("segment_type") == "small",
        private,
        blocks,
    ]


def _annotations(found: Any, device: int) -> list[list[Any]]:
    listed = found[:_MAX_EVENTS] if isinstance(found, list) else []
    return [
        [text_of(a.get("name")), a.get("stage") == "START", int64_or_none(a.get("time_us")) or 0]
        for a in listed
        if isinstance(a, dict)
        and (int64_or_none(a.get("device")) or 0) == device
        and a.get("stage") in ("START", "END")
    ]
