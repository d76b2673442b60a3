"""What torch itself dumps, in a run folder: flight recorder dumps and CUDA memory snapshots."""

from pathlib import Path

from stepscope.run.imports.format import BytesRead, Contents, FileHead, Format
from stepscope.units import readable_bytes

_PICKLE = b"\x80"


def _is_flight(head: FileHead) -> bool:
    """Return whether a pickle names process groups, or a JSON text numbers collectives."""
    if head.start.startswith(_PICKLE):
        return b"entries" in head.start and (b"pg_config" in head.start or b"profiling_name" in head.start)
    return head.start.lstrip().startswith(b"{") and b'"collective_seq_id"' in head.start


def _look_flight(path: Path, _told: BytesRead) -> Contents:
    from stepscope.trace.pickles.flight_recorder import read_flight_dump  # only where there is such a file

    dump = read_flight_dump(path)
    groups = len({e.group for e in dump.entries})
    what = f"{len(dump.entries):,} collectives of {groups} group{'' if groups == 1 else 's'}"
    return Contents(what, () if dump.rank is None else (dump.rank,))


def _is_snapshot(head: FileHead) -> bool:
    return head.start.startswith(_PICKLE) and b"segments" in head.start[:256]


def _look_snapshot(path: Path, _told: BytesRead) -> Contents:
    from stepscope.trace.pickles.memory_snapshot import read_memory_snapshot  # only where there is such a file

    found = read_memory_snapshot(path)
    return Contents(f"{readable_bytes(found.allocated_bytes)} allocated, {len(found.action):,} events")


FLIGHT_RECORDER = Format(
    id="flight",
    title="flight recorder dump",
    ending="flight_recorder.dump",
    is_it=_is_flight,
    look=_look_flight,
    other_endings=("flight_recorder.jsonl", "flight_recorder.pickle"),
)
MEMORY_SNAPSHOT = Format(
    id="memory",
    title="CUDA memory snapshot",
    ending="memory.pickle",
    is_it=_is_snapshot,
    look=_look_snapshot,
)
