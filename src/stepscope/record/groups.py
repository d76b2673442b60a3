"""The process groups this rank is in, and what the flight recorder knows of its collectives.

A trace of gloo has no group in its events and a trace of NCCL has; the flight recorder has it for both. Its entries
are written as JSON lines with the group table filled in, so that both kinds of job look alike to a reader.
"""

import json
from typing import Any

from stepscope.contract.run_folder import SCHEMA
from stepscope.record.rank import initialized_distributed

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
    """Return the flight recorder's JSON as it comes; None where it recorded nothing or is not there."""
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
