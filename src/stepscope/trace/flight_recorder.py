"""Dumps of torch's flight recorder: the newest collectives of one rank, with groups, shapes and stacks.

Three forms, distinguished by their first byte: the pickle that torch writes when a collective times out
(`nccl_trace_rank_3`), the same as one JSON object, and the JSON lines that `stepscope record` leaves
(`rank00003.flight_recorder.jsonl`). Versions 2.0 to 2.10 differ in a few names; a field that a version lacks is None.
"""

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from stepscope.contract.operations import op_name
from stepscope.contract.run_folder import json_object
from stepscope.errors import InputError
from stepscope.records import dataclass
from stepscope.side_file import is_number, open_side_file, parsed_json, read_side_file, side_file_lines
from stepscope.trace.pickles import read_pickled

_WHAT = "flight recorder dump"
_MAX_ENTRIES = 100_000
_MAX_JSON_BYTES = 256 << 20
_MAX_FRAMES = 64
_MAX_TENSORS = 4_096
_MAX_TEXT = 400
_FIELDS = (
    *("record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "seq_id", "op_id", "profiling_name"),
    *("time_created_ns", "duration_ms", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "state"),
    *("time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p", "frames"),
)
_RANK = re.compile(r"rank[_-]?(\d{1,9})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,9})(?:\.[A-Za-z]+)*$")
_POINT_TO_POINT = re.compile(r"\b(send|recv) (\d{1,9})\s*(?:->|<-)\s*(\d{1,9})")


@dataclass(frozen=True)
class Frame:
    """One frame of a call stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class FlightEntry:
    """One collective, or one send or receive, as its rank noted it."""

    record_id: int
    #: name of the group
    group: str
    group_desc: str
    #: number of the collective in its group, of the send or receive where it is one; from 1
    seq: int
    is_p2p: bool
    #: as the recorder names it: `nccl:all_reduce`
    named: str
    op: str
    #: from and to, of a send or receive, as ranks of the group
    peers: tuple[int, int] | None
    created_ns: int | None
    #: `scheduled`, `started` or `completed`, as last seen by the rank's watchdog
    state: str
    completed: bool
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    duration_ms: float | None
    #: innermost first; empty where stacks were not recorded
    stack: tuple[Frame, ...]


@dataclass(frozen=True)
class FlightGroup:
    """One process group as a dump describes it."""

    name: str
    desc: str
    #: None where the dump does not list them, as gloo's does not
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class FlightDump:
    """What one rank's flight recorder held."""

    path: str
    #: None where neither the file nor its name has it
    rank: int | None
    version: str | None
    #: version of NCCL
    library: str | None
    groups: dict[str, FlightGroup]
    #: oldest first
    entries: tuple[FlightEntry, ...]
    #: the oldest entries were overwritten


def read_flight_dump(path: Path) -> FlightDump:
    """Return the dump in a file; an `InputError` where it holds none."""
    found = _read(path)
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise InputError(f"{path} is no {_WHAT}: it holds no list of entries; give the files that torch dumped")
    groups = _groups(found)
    entries = [e for e in (_entry(raw, groups) for raw in found["entries"][:_MAX_ENTRIES]) if e is not None]
    if found["entries"] and not entries:
        raise InputError(f"{path} is no {_WHAT}: none of its entries has a group, a number and a name")
    entries.sort(key=lambda e: e.record_id)
    return FlightDump(
        path=str(path),
        rank=int64_or_none(found.get("rank")) if int64_or_none(found.get("rank")) is not None else rank_in(path.name),
        version=text_of(found.get("version")) or None,
        library=text_of(found.get("comm_lib_version") or found.get("nccl_version")) or None,
        groups=groups,
        entries=tuple(entries),
    )


def rank_in(name: str) -> int | None:
    """Return the rank that a dump's name ends in or gives, None where there is no number.

    >>> [rank_in(n) for n in ("nccl_trace_rank_12", "rank00003.flight_recorder.jsonl", "dump_7.pickle", "dump")]
    [12, 3, 7, None]
    """
    found = _RANK.search(name) or _LAST_NUMBER.search(name)
    return int(found[1]) if found else None


def _reduced(found: Any) -> Any:
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        return None
    entries = [e for e in found["entries"][:_MAX_ENTRIES] if isinstance(e, dict)]
    kept = {name: found.get(name) for name in ("version", "comm_lib_version", "nccl_version", "pg_config", "rank")}
    return {**kept, "entries": [{name: e[name] for name in _FIELDS if name in e} for e in entries]}


def _read(path: Path) -> Any:
    try:
        with open_side_file(path, max_bytes=1 << 40) as f:
            first = f.read(64).lstrip()[:1]
        if first != b"{":
            return read_pickled(path, _reduced, what=_WHAT)
        return _json_lines(path) or parsed_json(read_side_file(path, max_bytes=_MAX_JSON_BYTES)).value
    except ValueError as error:
        raise InputError(f"{path} is no {_WHAT}: it is damaged or no JSON; give the files that torch dumped") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; give the files that torch dumped") from error


def _json_lines(path: Path) -> Any:
    lines = side_file_lines(path, max_bytes=_MAX_JSON_BYTES)
    header = json_object(next(lines, b""))
    if header is None or "entries" in header or "process_groups" not in header:
        lines.close()
        return None
    entries = (json_object(line) for line in islice(lines, _MAX_ENTRIES))
    return {**header, "entries": [e for e in entries if e is not None]}


def _groups(found: dict[str, Any]) -> dict[str, FlightGroup]:
    listed = found.get("pg_config")
    of_recorder = found.get("process_groups")
    described: Iterable[Any] = listed.values() if isinstance(listed, dict) else ()
    described = [*islice(described, 10_000), *(of_recorder if isinstance(of_recorder, list) else [])]
    named = [(text_of(one.get("name")), one) for one in described if isinstance(one, dict)]
    return {name: FlightGroup(name, text_of(one.get("desc")), _ranks(one.get("ranks"))) for name, one in named if name}


def _ranks(said: Any) -> tuple[int, ...] | None:
    if isinstance(said, str):
        try:
            said = parsed_json(said[: 1 << 20]).value
        except ValueError:
            return None
    ranks = [int64_or_none(r) for r in said] if isinstance(said, list) else []
    known = [r for r in ranks if r is not None and r >= 0]
    return tuple(sorted(set(known))) if known and len(known) == len(ranks) else None


def _entry(raw: Any, groups: dict[str, FlightGroup]) -> FlightEntry | None:
    if not isinstance(raw, dict):
        return None
    named, record_id = raw.get("profiling_name"), int64_or_none(raw.get("record_id"))
    is_p2p = raw.get("is_p2p") is True
    numbers = ("p2p_seq_id",) if is_p2p else ("collective_seq_id", "seq_id")
    seq = next((n for n in (int64_or_none(raw.get(key)) for key in numbers) if n is not None), None)
    group, desc = _group_of(raw)
    if not isinstance(named, str) or record_id is None or seq is None or group is None:
        return None
    between = _POINT_TO_POINT.search(named)
    ends = (int(between[2]), int(between[3])) if between else None
    state, dtypes, duration = text_of(raw.get("state")), raw.get("input_dtypes"), raw.get("duration_ms")
    frames = raw.get("frames")
    return FlightEntry(
        record_id=record_id,
        group=group,
        group_desc=desc or (groups[group].desc if group in groups else ""),
        seq=seq,
        is_p2p=is_p2p,
        named=named[:_MAX_TEXT],
        op=op_name(named.partition(":")[2] or named),
        peers=ends[::-1] if ends and between and between[1] == "recv" else ends,
        created_ns=int64_or_none(raw.get("time_created_ns")),
        state=state,
        completed=state == "completed" or raw.get("retired") is True,
        input_sizes=_sizes(raw.get("input_sizes")),
        output_sizes=_sizes(raw.get("output_sizes")),
        input_dtypes=tuple(map(text_of, dtypes[:_MAX_TENSORS])) if isinstance(dtypes, list | tuple) else (),
        duration_ms=float(duration or 0) if is_number(duration, low=-1e15, high=1e15) else None,
        stack=tuple(
            Frame(text_of(f.get("filename")), int64_or_none(f.get("line")) or 0, text_of(f.get("name")))
            for f in (frames[:_MAX_FRAMES] if isinstance(frames, list) else [])
            if isinstance(f, dict)
        ),
    )


def _group_of(raw: dict[str, Any]) -> tuple[str | None, str]:
    said = raw.get("process_group")
    if isinstance(said, list | tuple) and said:
        return text_of(said[0]), text_of(said[1]) if len(said) > 1 else ""
    number = int64_or_none(raw.get("pg_id"))
    return (text_of(said) if isinstance(said, str) else str(number) if number is not None else None), ""


def _sizes(found: Any) -> tuple[tuple[int, ...], ...]:
    listed = found[:_MAX_TENSORS] if isinstance(found, list | tuple) else []
    return tuple(
        tuple(n for n in (int64_or_none(n) for n in shape[:_MAX_FRAMES]) if n is not None)
        for shape in listed
        if isinstance(shape, list | tuple)
    )


def text_of(found: Any) -> str:
    """Return a text of bounded length, an empty one for anything else."""
    return found[:_MAX_TEXT] if isinstance(found, str) else ""


def int64_or_none(found: Any) -> int | None:
    """Return an integer of 64 bits, None for anything else."""
    return found if isinstance(found, int) and not isinstance(found, bool) and -(2**63) <= found < 2**63 else None
