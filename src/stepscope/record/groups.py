"""The process groups of this rank, and the flight recorder's data about its collectives.

A trace of gloo has no group in its events and a trace of NCCL has; the flight recorder has it for both. Its entries
are written as JSON lines with the group table filled in, so that both kinds of job look alike to a reader.
"""

import json
import sys
from typing import Any

from stepscope.contract.run_folder import SCHEMA
from stepscope.record.config import initialized_distributed


def newest_collectives() -> list[dict[str, Any]]:
    """Return the entries of every recorder in this process, oldest first; empty where torch has none or it is off."""
    import torch.distributed as dist

    if not dist.is_available():
        return []
    import pickle  # not in the helper

    import torch._C._distributed_c10d as c10d

    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):  # NCCL has its own; the other serves gloo and the rest
        dump = getattr(c10d, name, None)
        found = pickle.loads(_without_stacks(dump)) if dump is not None else None
        for entry in found.get("entries", []) if isinstance(found, dict) else []:
            entries.setdefault((entry["time_created_ns"], entry["record_id"], entry["profiling_name"]), entry)
    return [entries[key] for key in sorted(entries)]


def _without_stacks(dump: Any) -> bytes:
    try:
        return bytes(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
    except TypeError:  # before torch 2.5
        return bytes(dump())


FLIGHT_RECORDER = "flight_recorder.jsonl"


def process_groups() -> list[dict[str, Any]] | None:
    """Return `[{"name", "desc", "backend", "ranks"}]` of this rank's groups, None without torch.distributed."""
    dist = initialized_distributed()
    if dist is None:
        return None
    world = dist.distributed_c10d._world
    return [
        {
            "name": str(world.pg_names[group]),
            "desc": str(getattr(group, "group_desc", "") or ""),
            "backend": str(world.pg_map[group][0]),
            "ranks": sorted(ranks),
        }
        for group, ranks in world.pg_group_ranks.items()
        if group in world.pg_names and group in world.pg_map
    ]


def backend() -> str | None:
    """Return the default group's backend."""
    dist = initialized_distributed()
    return str(dist.get_backend()) if dist is not None else None


def group_timeout_s() -> float | None:
    """Return how long ranks wait for each other in a collective of the default group, None where unknown."""
    dist = initialized_distributed()
    try:
        group = dist.group.WORLD
        return float(group._get_backend(group._device_types[0]).options._timeout.total_seconds())
    except (AttributeError, RuntimeError, IndexError, TypeError):
        return None


def flight_dump() -> bytes | None:
    """Return the flight recorder's JSON unchanged; None where it recorded nothing or is not available."""
    if initialized_distributed() is None:
        return None

    import torch._C._distributed_c10d as c10d

    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        text: bytes = dump() if dump is not None else b""
        if b"collective_seq_id" in text:
            return text
    return None


def flight_lines(dump: bytes, *, rank: int, groups: list[dict[str, Any]] | None) -> bytes:
    """Return a dump as JSON lines: one header with the group table, then one line per collective."""
    found = json.loads(dump)
    entries = found.pop("entries", [])
    header = {"schema": SCHEMA, "rank": rank, **found, "process_groups": groups}
    return b"".join(json.dumps(line).encode() + b"\n" for line in (header, *entries))


_MAX_FILE = 200


def whereabouts(thread: int, *, region: str | None) -> dict[str, Any]:
    """Return `{"frames", "region", "collective", "sequence", "group"}`; frames are innermost first."""
    frame = sys._current_frames().get(thread)
    frames: list[list[Any]] = []
    while frame is not None and len(frames) < 40:
        code = frame.f_code
        frames.append([code.co_filename[-_MAX_FILE:], frame.f_lineno, code.co_name[:_MAX_FILE]])
        frame = frame.f_back
    return {"frames": frames, "region": region, **_newest_collective()}


def _newest_collective() -> dict[str, Any]:
    try:
        entries = newest_collectives()
    except Exception:  # noqa: BLE001 - a private interface of torch
        return {}
    if not entries:
        return {}
    entry = entries[-1]
    name = str(entry.get("profiling_name", "?")).partition(":")[2] or str(entry.get("profiling_name", "?"))
    numbers = (entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")), entry.get("op_id")
    number = next((n for n in numbers if isinstance(n, int)), None)
    group = entry.get("process_group")
    known = str(group[0]) if isinstance(group, list | tuple) and group else None
    state = str(entry.get("state", "?"))
    return {"collective": f"{name} #{number} of group {known}, {state}", "sequence": number, "group": known}
